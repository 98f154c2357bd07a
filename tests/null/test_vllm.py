"""vLLM from its wheel, unedited, on a share of a null H100: it decodes, and a step makes few round trips.

No kernel runs. A rule writes how many tokens were sampled, so nothing here shows that an answer is right.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest
from null.serving import PYTHON, SECONDS, model, null_h100, settings
from support import proxied
from support.system import Appliance, appliance

PROGRAM = Path(__file__).parent / "programs" / "vllm_decode.py"
STEPS = 100
# Besides those that are counted.
MORE_TOKENS = 30
MOST_ROUND_TRIPS = 10
BATCHES = (1, 32)
# There and back; and how often each is measured: more often on a busy machine.
DELAY_MS, ROUNDS, MOST_ROUNDS = 5, 3, 10
pytestmark = [pytest.mark.null_serving, pytest.mark.timeout(SECONDS + 60)]


class Network(ExitStack):
    """A proxy before the appliance; another delay is another proxy, so that connections are cut."""

    def __init__(self, where: Appliance) -> None:
        super().__init__()
        self.where = where
        self.delay(0)

    def delay(self, there_and_back_ms: float) -> None:
        self.close()
        self.enter_context(proxied.delayed(self.where, there_and_back_ms / 2))


class Decoding:
    """The program on a quarter of a null H100, and the network between them."""

    def __init__(self, process: subprocess.Popen[str], log: Path, steps: int, network: Network) -> None:
        self.process, self.log, self.steps, self.network = process, log, steps, network

    def answer(self) -> dict[str, Any]:
        """The next line of JSON; skips vLLM's other output."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                print(found)
                return found
        raise AssertionError(f"the program ended: {self.log.read_text()[-20_000:]}")

    def counts(self) -> dict[int, float]:
        """Round trips of a step, by the number of requests."""
        found = self.answer()
        for batch in BATCHES:
            assert found[str(batch)]["tokens"] == [self.steps + MORE_TOKENS]
            assert 0 < found[str(batch)]["round_trips"] <= MOST_ROUND_TRIPS
        return {batch: found[str(batch)]["round_trips"] for batch in BATCHES}

    def milliseconds(self, batch: int) -> float:
        """Milliseconds of a step after a pause: during network delays processors rest, and are slower afterwards."""
        assert self.process.stdin is not None
        print(batch, DELAY_MS, file=self.process.stdin, flush=True)
        return float(self.answer()["ms"])

    def end(self) -> str:
        """Waits for the end. Returns the program's error output."""
        self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == 0, self.log.read_text()[-20_000:]
        return self.log.read_text()


@contextmanager
def decoding(folder: Path, longest: int, steps: int, *options: str, carrier: str = "direct") -> Iterator[Decoding]:
    environment = {
        "REMOTEGPU_STATS": str(folder / "statistics"),
        "REMOTEGPU_CARRIER": carrier,
        # The program's own process decodes, so that it can count each step.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    log = folder / "log"
    with null_h100() as it, Network(it) as network, log.open("w") as errors:
        command = proxied.command(it, str(PYTHON), str(PROGRAM), str(model(folder)), str(longest), str(steps), *options)
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            env=os.environ | settings() | environment,
        ) as process:  # fmt: skip
            try:
                yield Decoding(process, log, steps, network)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def test_the_wheel_is_unedited() -> None:
    """Each file of Python is as the wheel's own list says; pip compared the wheel with the pinned hash."""
    (record,) = PYTHON.parents[1].glob("lib/python*/site-packages/vllm-*.dist-info/RECORD")
    folder = record.parents[1]
    rows = [row for row in csv.reader(record.read_text().splitlines()) if row[0].endswith(".py")]
    assert len(rows) > 1000
    for name, digest, _ in rows:
        kind, _, expected = digest.partition("=")
        made = base64.urlsafe_b64encode(hashlib.new(kind, (folder / name).read_bytes()).digest()).rstrip(b"=")
        assert made.decode() == expected, name


def test_a_step_makes_few_round_trips_and_takes_their_time(tmp_path: Path) -> None:
    """Uses CUDA graphs. Each extra delay of the network makes a step longer once for each round trip."""
    with decoding(tmp_path, 1024, STEPS) as program:
        counted = program.counts()
        best: dict[tuple[int, float], float] = defaultdict(lambda: inf)
        for number in range(1, MOST_ROUNDS + 1):
            for delay in (0, DELAY_MS):
                program.network.delay(delay)
                for batch in BATCHES:
                    best[batch, delay] = min(best[batch, delay], program.milliseconds(batch))
            waited = {batch: (best[batch, DELAY_MS] - best[batch, 0]) / DELAY_MS for batch in BATCHES}
            print(f"{waited} delays for {counted} round trips, by {dict(best)} ms")
            # Other work makes steps longer, and never shorter.
            if number >= ROUNDS and waited == pytest.approx(counted, abs=0.5):
                break
        assert waited == pytest.approx(counted, abs=0.5)
        program.end()


def test_a_long_context_starts(tmp_path: Path) -> None:
    """Without CUDA graphs. The tables of 256 sequences of 131,072 tokens are page-locked, and have mirrors."""
    with decoding(tmp_path, 131072, 10, "eager") as program:
        program.counts()
        assert "kernels use 128 MiB of page-locked memory in place" in program.end()


def test_tensor_parallelism_is_refused_by_vllm(tmp_path: Path) -> None:
    """A share of one GPU shows one, also where the machine has two."""
    command = [str(PYTHON.parent / "vllm"), "serve", str(model(tmp_path)), "--tensor-parallel-size=2"]
    with appliance("--gpus", "2", profile="null-h100", memory_mib=80 << 10) as it:
        done = it.run(*command, env=settings(), timeout=SECONDS)
    assert done.returncode == 1
    assert "World size (2) is larger than the number of available GPUs (1)" in done.stdout + done.stderr
