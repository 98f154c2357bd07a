"""A program that launches without waiting is held back, as by a driver whose queue is full: neither its memory nor its
worker's grows, and another thread's call that releases the stream gets through."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faultproxy import FaultProxy
from support.proxied import BEHIND_PROXIES, before_data
from support.system import MIB, PROGRAMS, Appliance, appliance, line, until

RESULT = re.compile(r"(\d+) before, (-?\d+) MiB more, (\d+) counted")
# A stream takes 24,576; what a program may see of that is bounded, not promised.
MOST_GIVEN = 100_000
MOST_MIB = 64


@pytest.fixture(scope="module", params=[(), ("--compute-mode", "turns")], ids=["memory", "turns"])
def shared(request: pytest.FixtureRequest) -> Iterator[Appliance]:
    with appliance(*request.param) as it:
        yield it


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    built = tmp_path_factory.mktemp("millions") / "millions"
    subprocess.run(["cc", "-O1", "-o", built, PROGRAMS / "millions.c", "-ldl", "-lpthread"], check=True)
    return str(built)


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Run:
    """A run of the program, and what its worker has in memory meanwhile."""

    def __init__(
        self,
        it: Appliance,
        program: str,
        launches: int,
        seconds: int,
        how: str,
        *,
        stop: bool = False,
        network: FaultProxy | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        """`stop`: its worker stands still longer than the stream is held; `network`: what carries its bytes does."""
        self.launches = launches
        with it.start(program, str(launches), str(seconds), how, stdin=subprocess.PIPE, env=env) as process:
            assert line(process) == "ready"
            (worker,) = it.workers()
            before = self.most = resident(worker)
            if stop:
                os.kill(worker, signal.SIGSTOP)
                threading.Timer(seconds + 1, os.kill, (worker, signal.SIGCONT)).start()
            if network is not None:
                network.stand_still()
                threading.Timer(seconds + 1, network.go_on).start()
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            until(lambda: self._look(process, worker), 600, "it ends")
            assert process.stdout is not None and process.stderr is not None
            printed, errors = process.stdout.read(), process.stderr.read()
        found = RESULT.match(printed)
        assert found, printed + errors
        self.before, self.client_mib, self.counted = map(int, found.groups())
        self.worker_mib = (self.most - before) / MIB
        # For docs/benchmarks.md, by `pytest -s`.
        print(f"\n{how}, at load {os.getloadavg()[0]:.1f}: {self}")

    def _look(self, process: subprocess.Popen[str], worker: int) -> bool:
        if process.poll() is not None:
            return True
        with contextlib.suppress(FileNotFoundError, IndexError):
            self.most = max(self.most, resident(worker))
        return False

    def is_held_back(self) -> bool:
        small = max(self.client_mib, self.worker_mib) <= MOST_MIB
        return self.counted == self.launches and 0 < self.before < MOST_GIVEN and small

    def __repr__(self) -> str:
        return (
            f"{self.before} before, client {self.client_mib}, worker {self.worker_mib:.0f} MiB, {self.counted} counted"
        )


MANY = pytest.param(2_000_000, 10, marks=[pytest.mark.thorough, pytest.mark.timeout(1800)])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["kernel", "graph"])
@pytest.mark.parametrize(("launches", "seconds"), [(150_000, 2), MANY])
def test_launches_behind_a_held_stream_wait(
    shared: Appliance, program: str, launches: int, seconds: int, how: str
) -> None:
    run = Run(shared, program, launches, seconds, how)
    assert run.is_held_back(), run


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("launches", "seconds"), [(150_000, 2), MANY])
@pytest.mark.parametrize("stop", [False, True], ids=["held stream", "nobody takes them"])
def test_launches_by_grpc_wait(shared: Appliance, program: str, launches: int, seconds: int, stop: bool) -> None:
    run = Run(shared, program, launches, seconds, "kernel", stop=stop, env={"REMOTEGPU_CARRIER": "grpc"})
    assert run.is_held_back(), run


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("launches", "seconds"), [(150_000, 2), MANY])
def test_launches_that_nobody_takes_wait(shared: Appliance, program: str, launches: int, seconds: int) -> None:
    """The worker reads nothing, as when a network stands still; then the thread's call comes late, too."""
    run = Run(shared, program, launches, seconds, "kernel", stop=True)
    assert run.is_held_back(), run


@pytest.fixture(scope="module")
def patient() -> Iterator[Appliance]:
    with appliance("--grace", "60s") as it:
        yield it


# Longer than a connection may be without a byte: it counts as lost, and the session continues with another one.
LONGER = pytest.param(2_000_000, 12, marks=[pytest.mark.thorough, pytest.mark.timeout(1800)])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("launches", "seconds"), [(150_000, 3), LONGER])
@pytest.mark.parametrize(
    ("how", "stripes", "carrier"),
    [("kernel", "0", "direct"), ("copy", "2", "direct"), ("kernel", "0", "grpc")],
    ids=["alone", "with stripes", "grpc"],
)
def test_a_network_that_stands_still_holds_the_program_back(
    patient: Appliance, program: str, tmp_path: Path, how: str, stripes: str, carrier: str, launches: int, seconds: int
) -> None:
    """Nothing reads or closes the connection for a while. Then the connection works again, and nothing is lost."""
    out, own = tmp_path / "statistics", patient.endpoint
    env = {"REMOTEGPU_CARRIER": carrier, "REMOTEGPU_STRIPES": stripes, "REMOTEGPU_STATS": str(out)}
    with before_data(patient, carrier=carrier) as network:
        patient.endpoint = f"{BEHIND_PROXIES}:{own.rpartition(':')[2]}"
        try:
            run = Run(patient, program, launches, seconds, how, network=network, env=env)
        finally:
            patient.endpoint = own
    assert run.is_held_back(), run
    assert (json.loads(out.read_text())["bytes_striped"] > 0) == (how == "copy")
