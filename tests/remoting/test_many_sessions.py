"""A thousand sessions of real workers on one appliance: idle, working, one too many, and gone without a trace."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.system import MIB, PROGRAMS, Appliance, appliance, line, until

CUDA_ERROR_DEVICES_UNAVAILABLE = 46
# A worker and its client hold 0.4 and 0.6 MB for themselves when idle; a session that works adds its slab of 2 MiB.
MOST_PER_WORKER = 4 * MIB
# Memory that Python's allocator and the C library keep after freeing.
MOST_KEPT = 16 * MIB
ROUNDS = 20


@pytest.fixture(scope="module")
def many_sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("many_sessions") / "many_sessions"
    subprocess.run(["cc", "-O1", "-o", program, PROGRAMS / "many_sessions.c", "-ldl"], check=True)
    return program


@dataclass(frozen=True)
class Held:
    """The descriptors and memory of an appliance and its gateway."""

    descriptors: list[int]
    memory: list[int]

    @classmethod
    def by(cls, remote: Appliance) -> Held:
        processes = [remote.process.pid, *_children(remote.process.pid, "remotegpu-gateway")]
        assert len(processes) == 2, "the appliance and its gateway"
        return cls([_descriptors(pid) for pid in processes], [_own_memory(pid) for pid in processes])


def _children(pid: int, name: str) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", name], capture_output=True, text=True, check=False)
    return [int(child) for child in found.stdout.split()]


def _descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _own_memory(pid: int) -> int:
    """Bytes without a file behind them; 0 for a process that has ended."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return sum(int(number) << 10 for number in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.MULTILINE))
    return 0


def _uid(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def _cgroups(remote: Appliance) -> list[str]:
    """Groups that the appliance has made."""
    found = subprocess.run(
        ["find", "/sys/fs/cgroup", "-name", f"remotegpu-{remote.process.pid}-*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.split()


def _tell(host: subprocess.Popen[str], words: str) -> list[str]:
    assert host.stdin is not None
    host.stdin.write(f"{words}\n")
    host.stdin.flush()
    return line(host).split()


@contextlib.contextmanager
def _sessions(remote: Appliance, program: Path, leases: int, each: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Opens this many leases, each a program whose `each` children have a session."""
    with contextlib.ExitStack() as stack:
        hosts = [
            stack.enter_context(
                remote.start(str(program), str(each), share=f"{1 / leases:.6f}"[:5], stdin=subprocess.PIPE)
            )
            for _ in range(leases)
        ]
        with ThreadPoolExecutor(leases) as pool:
            assert list(pool.map(line, hosts)) == ["ready"] * leases
        yield hosts


def _check(program: Path, leases: int, each: int) -> None:
    count = leases * each
    limits = ("--sessions-per-gpu", str(count), "--sessions-per-lease", str(count))
    with appliance("--grace", "0s", *limits, memory_mib=16 << 10) as remote:
        # What is made once is there: a session has come and gone, and worked.
        with _sessions(remote, program, 1, 1) as (host,):
            assert _tell(host, "work 1")[0] == "worked"
            first_uid = _uid(remote.workers()[0])
        until(lambda: not remote.workers() and remote.leased_bytes() == 0, 10, "the first session is gone")
        before = Held.by(remote)

        began = time.monotonic()
        with _sessions(remote, program, leases, each) as hosts:
            opened = time.monotonic() - began
            workers = remote.workers()
            assert len(workers) == count
            if os.geteuid() == 0:
                assert len({_uid(pid) for pid in workers}) == count, "each has a user id of its own"
            idle = sum(map(_own_memory, workers)) / count
            assert idle < MOST_PER_WORKER
            milliseconds = _one_too_many(hosts[0], each, count)

            # All work at the same time, and each checks its own numbers.
            began = time.monotonic()
            with ThreadPoolExecutor(leases) as pool:
                worked = list(pool.map(lambda host: _tell(host, f"work {ROUNDS}"), hosts))
            seconds = time.monotonic() - began
            assert [(word, int(launches)) for word, launches, _ in worked] == [("worked", each * ROUNDS)] * leases
            working = sum(map(_own_memory, workers)) / count
            assert working < MOST_PER_WORKER
            assert remote.workers() == workers, "no worker ended and none came"
            full = Held.by(remote)
        until(lambda: not remote.workers() and remote.leased_bytes() == 0, 30, "all sessions are gone")
        until(lambda: Held.by(remote).descriptors == before.descriptors, 10, "every descriptor is closed")
        after = Held.by(remote)
        assert remote.used_bytes() == 0
        assert not _cgroups(remote)
        for process, was, now in zip(("appliance", "gateway"), before.memory, after.memory, strict=True):
            assert now - was < MOST_KEPT, f"the {process} keeps {(now - was) / MIB:.1f} MiB"
        # The lowest user ids are handed out first: every one of these came back.
        with _sessions(remote, program, 1, min(each, 20)) as (host,):
            assert _tell(host, "work 1")[0] == "worked"
            if os.geteuid() == 0:
                assert sorted(map(_uid, remote.workers())) == list(range(first_uid, first_uid + min(each, 20)))
        memory = [[round(number / MIB, 1) for number in held.memory] for held in (before, full, after)]
        print(
            f"{count} sessions in {leases} leases: opened in {opened:.1f} s, one too many refused in "
            f"{milliseconds} ms, {count * ROUNDS} launches in {seconds:.1f} s; MiB of a worker {idle / MIB:.2f} idle, "
            f"{working / MIB:.2f} working; appliance and gateway before, full, after: descriptors "
            f"{before.descriptors}, {full.descriptors}, {after.descriptors}, MiB {memory}"
        )


def _one_too_many(host: subprocess.Popen[str], part: int, count: int) -> int:
    """Milliseconds until the surplus session is refused."""
    word, code, milliseconds = _tell(host, "more")
    assert (word, int(code)) == ("refused", CUDA_ERROR_DEVICES_UNAVAILABLE)
    assert int(milliseconds) < 1000
    assert host.stderr is not None
    sentence = host.stderr.readline()
    assert f"its part of {part} sessions of the {count} there (--sessions-per-gpu): end some" in sentence
    return int(milliseconds)


def test_forty_sessions(many_sessions: Path) -> None:
    _check(many_sessions, leases=4, each=10)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_a_thousand_sessions(many_sessions: Path) -> None:
    _check(many_sessions, leases=10, each=100)
