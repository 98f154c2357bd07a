"""Gibibytes through a share in both directions: every bit arrives, and neither end needs memory for them."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from pathlib import Path

import pytest
from support.system import MIB, Appliance, appliance, line

# Of a client whose program holds 64 MiB of pages, a copy of them and a piece of 64 MiB; of a worker.
CLIENT_MIB, WORKER_MIB = 700, 300


def _own_memory(pid: int) -> int:
    """Bytes for itself alone. The software GPU's memory is shared memory, and so is what the program copies."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


class Largest:
    """The most that processes were seen to hold, looked at 20 times a second while the block lasts."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self.bytes = dict.fromkeys(pids, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            for name, pid in self._pids.items():
                self.bytes[name] = max(self.bytes[name], _own_memory(pid))

    def __enter__(self) -> Largest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _program(client: subprocess.Popen[str]) -> int:
    """The Python below `remotegpu run`."""
    found = subprocess.run(
        ["pgrep", "-P", str(client.pid), "-f", "large_copy"], capture_output=True, text=True, check=True
    )
    return int(found.stdout.split()[-1])


def _available_mib() -> int:
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) >> 10


@pytest.mark.parametrize(
    "mebibytes", [256, pytest.param(8192, marks=[pytest.mark.thorough, pytest.mark.timeout(1200)])]
)
def test_every_bit_arrives(mebibytes: int) -> None:
    if _available_mib() < 2 * mebibytes:
        pytest.skip(f"the software GPU keeps {mebibytes} MiB in this machine's memory, of which too little is free")
    with appliance(memory_mib=2 * mebibytes) as remote:
        _copy(remote, mebibytes)


def _copy(remote: Appliance, mebibytes: int) -> None:
    began = time.monotonic()
    with remote.start("large_copy.py", str(mebibytes), share="0.75", stdin=subprocess.PIPE) as client:
        assert client.stdin is not None
        while not (workers := remote.workers()):
            time.sleep(0.01)
        with Largest({"client": _program(client), "worker": workers[0]}) as largest:
            assert line(client) == "copied"
            there = time.monotonic() - began
            assert remote.used_bytes() >= mebibytes * MIB
            client.stdin.write("\n")
            client.stdin.flush()
            word, _ = line(client).split()
            assert word == "same"
        back = time.monotonic() - began - there
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.wait(30) == 0
    held = {name: size / MIB for name, size in largest.bytes.items()}
    print(f"{mebibytes} MiB: there in {there:.1f} s, back in {back:.1f} s; most MiB for itself: {held}")
    assert held["client"] < CLIENT_MIB
    assert held["worker"] < WORKER_MIB
