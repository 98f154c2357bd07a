"""Processes of pods and nodes, found from outside, so that they can be killed as the kernel or a fault would."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.kubectl import Kubectl, Object


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    command: tuple[str, ...]

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise AssertionError(f"{self} has no memory")


def all_processes() -> Iterator[Process]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield Process(int(folder.name), tuple(command[:-1]))


def of_pod(pod: Object) -> list[Process]:
    """Returns the pod's processes, without the sandbox's own: kubelet names a pod's control group after its uid."""
    uid = pod["metadata"]["uid"]
    found = []
    for process in all_processes():
        with contextlib.suppress(OSError):
            groups = Path(f"/proc/{process.pid}/cgroup").read_text()
            if f"pod{uid}" in groups and process.command[:1] != ("/pause",):
                found.append(process)
    return found


def main_process(pod: Object) -> Process:
    """The container's first process."""
    return min(of_pod(pod), key=lambda process: process.pid)


def kill(pod: Object) -> None:
    """Sends SIGKILL to all processes of a pod's containers at once, as if part of the machine crashed."""
    for process in of_pod(pod):
        process.signal(signal.SIGKILL)


@contextlib.contextmanager
def stopped(*processes: Process) -> Iterator[None]:
    """Stops the processes with SIGSTOP inside the block."""
    for process in processes:
        process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.signal(signal.SIGCONT)


def restarts(kubectl: Kubectl, pod: Object) -> int:
    found = kubectl.get("pod", pod["metadata"]["name"], pod["metadata"]["namespace"])
    return sum(each["restartCount"] for each in found["status"].get("containerStatuses", [])) if found else 0
