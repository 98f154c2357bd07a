"""Processes of a share hand its memory over, as `train && evaluate` and a trainer next to its inference server do.

Memory that one gives back by its end or by a call goes to the next one, and none sees the data of another.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from support.certificates import certificate
from support.system import DIST, MIB, PROGRAMS, REMOTEGPU, Appliance, line, until

ONE_AFTER_THE_OTHER = ("return", "exit", "kill", "exec")
IN_TURN = ("free", "unmap", "trim", "reset")
CARRIERS = ("socket", "tcp", "tls", "grpc")
# Few enough for CI; and what the promise names: by which carrier, how often, and beside how many busy processes.
FEW, PROMISED = 5, (("socket", 500, 0), ("socket", 50, 10), ("tcp", 50, 0), ("tls", 50, 0), ("grpc", 50, 0))
# These tell nobody of their end. Whose network is lost has three seconds to come back.
UNTOLD, MOST_MS = ("exit", "kill", "exec"), 1000
PERCENT = 85
_USER = () if os.geteuid() == 0 else ("--user", "--map-root-user")
CONTAINER = ("unshare", *_USER, "--pid", "--fork", "--mount-proc", "--kill-child")
RESULT = re.compile(r"(\d+) rounds, (\d+) refused, (\d+) wrong; median ([\d.]+)")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("hand_over") / "hand_over"
    subprocess.run(["cc", "-O1", "-o", built, PROGRAMS / "hand_over.c", "-ldl"], check=True)
    return built


class Share:
    """A whole GPU of an appliance, reached by a carrier."""

    def __init__(self, it: Appliance, carrier: str, options: tuple[str, ...] = ()) -> None:
        self.appliance, self.carrier, self.options = it, carrier, options
        carriers = {"tcp": "direct", "grpc": "grpc"}
        self.environment = os.environ | ({"REMOTEGPU_CARRIER": carriers[carrier]} if carrier in carriers else {})

    def command(self, *program: str) -> list[str]:
        ours = ["--appliance", self.appliance.endpoint, *self.options]
        return [REMOTEGPU, "run", *ours, "-p", "1", "--", *program]

    def run(self, *program: str, timeout: float = 60) -> str:
        done = subprocess.run(
            self.command(*program), capture_output=True, text=True, timeout=timeout, env=self.environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextlib.contextmanager
def share(
    carrier: str, folder: Path, memory_mib: int, within: tuple[str, ...] = (), more: tuple[str, ...] = ()
) -> Iterator[Share]:
    files = more
    options: tuple[str, ...] = ()
    if carrier == "tls":
        certificate(folder, "server", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        files += ("--cert", str(folder / "server.pem"), "--key", str(folder / "server.key"))
        options = ("--ca", str(folder / "server.pem"))
    # Nothing reads its log: thousands of sessions would fill a pipe.
    it = Appliance(*files, "--quiet", memory_mib=memory_mib, within=within)
    try:
        it.wait_until_ready(*options)
        yield Share(it, carrier, options)
    finally:
        it.stop()


@pytest.fixture(scope="module", params=CARRIERS)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Share]:
    with share(request.param, tmp_path_factory.mktemp("certificates"), 256) as it:
        yield it


def hand_over(share: Share, program: Path, how: str, rounds: int, timeout: float, within: tuple[str, ...] = ()) -> None:
    printed = share.run(*within, str(program), how, str(rounds), str(PERCENT), "0", timeout=timeout)
    found = RESULT.match(printed)
    assert found, printed
    # For docs/benchmarks.md, by `pytest -s`.
    print(f"\n{share.carrier}, {how}, at load {os.getloadavg()[0]:.1f}: {printed.strip()}")
    done, refused, wrong = map(int, found.groups()[:3])
    assert done >= rounds and (refused, wrong) == (0, 0), printed
    if how in UNTOLD:
        assert float(found[4]) < MOST_MS, printed


@pytest.mark.parametrize("how", ONE_AFTER_THE_OTHER + IN_TURN)
def test_the_next_process_has_the_memory(small: Share, program: Path, how: str) -> None:
    hand_over(small, program, how, FEW, 60)


@pytest.mark.parametrize("how", UNTOLD)
@pytest.mark.parametrize("small", CARRIERS[1:], indirect=True)
def test_the_end_of_a_process_in_a_container_is_seen(small: Share, program: Path, how: str) -> None:
    """It has a PID namespace of its own, below the appliance's."""
    hand_over(small, program, how, FEW, 60, CONTAINER)


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="module", params=CARRIERS[1:])
def beside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Share]:
    """An appliance that sees none of its clients' processes: it has a PID namespace of its own."""
    with share(request.param, tmp_path_factory.mktemp("certificates"), 256, CONTAINER) as it:
        yield it
        for inner in children(it.appliance.process.pid):
            os.kill(inner, signal.SIGTERM)


@pytest.mark.parametrize("how", UNTOLD)
def test_the_next_process_tells_of_the_end_of_one_that_the_appliance_does_not_see(
    beside: Share, program: Path, how: str
) -> None:
    """They are in a container alongside the appliance's, or on another machine: each sees the end of the last one."""
    hand_over(beside, program, how, FEW, 60, CONTAINER)


@contextlib.contextmanager
def load(busy: int) -> Iterator[None]:
    """Runs this many processes that also need a processor."""
    processes = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(busy)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module", params=PROMISED, ids=lambda it: "{}-{}_times-load_{}".format(*it))
def promised(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Share, int]]:
    carrier, rounds, busy = request.param
    with share(carrier, tmp_path_factory.mktemp("certificates"), 256) as it, load(busy):
        yield it, rounds


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", ONE_AFTER_THE_OTHER + IN_TURN)
def test_many_times(promised: tuple[Share, int], program: Path, how: str) -> None:
    it, rounds = promised
    hand_over(it, program, how, rounds, 3500)


@pytest.mark.parametrize("how", IN_TURN)
def test_the_same_natively(program: Path, how: str) -> None:
    done = subprocess.run(
        [REMOTEGPU, "run", "--native", "--", str(program), how, "2", "10", "0"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    found = RESULT.match(done.stdout)
    assert found, done.stderr
    assert found.groups()[1:3] == ("0", "0")


@pytest.mark.parametrize("small", ["socket"], indirect=True)
def test_a_shell_runs_training_and_evaluation_in_turn(small: Share, program: Path) -> None:
    """Each step of the script is a process of its own, of `sh`."""
    steps = (
        f'for step in 1 2 3 4 5; do "{program}" return 1 {PERCENT} 0 && "{program}" exit 1 {PERCENT} 0 || exit 1; done'
    )
    printed = small.run("sh", "-c", steps)
    assert [found[0] for found in RESULT.findall(printed)] == ["1"] * 10, printed


@pytest.mark.parametrize("small", ["socket"], indirect=True)
def test_a_killed_ones_memory_counts_as_free(small: Share, program: Path) -> None:
    """No process needs its memory, so nothing ends its session: it ends by itself, or counts as free before."""
    small.run(str(program), "kill", "1", str(PERCENT), "0")
    until(lambda: small.appliance.cli("ls", "--json", *small.options).stdout.count('"used_bytes": 0'), 20, "it is free")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Share]:
    """A share whose GPU takes seconds to overwrite what a process frees."""
    folder = tmp_path_factory.mktemp("slow") / "dist"
    (folder / "bin").mkdir(parents=True)
    for part in [*DIST.iterdir(), *(DIST / "bin").iterdir()]:
        place = folder / part.relative_to(DIST)
        if not place.exists():
            place.symlink_to(part)
    worker = folder / "bin" / "remotegpu-worker"
    worker.unlink()
    worker.write_text(f'#!/bin/sh\nREMOTEGPU_SOFTGPU_FILL_MICROS=5000000 exec {DIST}/bin/remotegpu-worker "$@"\n')
    worker.chmod(0o755)
    # Workers with a user of their own could not read the folder.
    within = ("env", f"REMOTEGPU_DIST={folder}")
    with share("socket", folder, 256, within, ("--uid-base", "0", "--no-self-test")) as it:
        yield it


@pytest.mark.parametrize("small", ["socket"], indirect=True)
def test_nothing_else_waits_while_a_request_waits_for_a_killed_ones_memory(small: Share) -> None:
    """Its worker stands still, and is not gone for seconds."""
    look_while_it_waits(small, "killed", 160)


def test_nothing_else_waits_while_a_request_waits_for_what_another_freed(slow: Share) -> None:
    """It is being overwritten. The request is for more, so nobody hands the memory on."""
    look_while_it_waits(slow, "freed", 200)


def look_while_it_waits(share: Share, how: str, asked_mib: int) -> None:
    """Checks that all of the memory counts as free while a process waits for it, and that the process gets it."""
    sizes = str(160 * MIB), str(asked_mib * MIB)
    command = share.command(sys.executable, str(PROGRAMS / "beside_waiting.py"), *sizes, how)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=share.environment
    ) as running:
        assert line(running) == "starts"
        own = set(share.appliance.workers())
        assert running.stdin
        running.stdin.write("\n")
        running.stdin.flush()
        assert line(running) == "holds"
        if how == "killed":
            (worker,) = set(share.appliance.workers()) - own
            os.kill(worker, signal.SIGSTOP)
        out, err = running.communicate("\n", timeout=60)
    assert running.returncode == 0, err
    seen = json.loads(out)
    assert seen["code"] == 0, err
    free, used = seen["before"]
    waiting = [each for each in seen["rounds"] if each[0] == free]
    assert len(waiting) >= 10, "each round is five answers, of which none waits for the memory"
    assert {each[0] for each in seen["rounds"][len(waiting) :]} <= {free - asked_mib * MIB}, "it has got it"
    assert waiting[-1][1] == used == seen["smi"]
