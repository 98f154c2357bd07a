"""The nodes' control groups: one group per node in every hierarchy, in which its kubelet keeps the pods."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
KILL_SECONDS = 20


def make(name: str) -> None:
    for hierarchy in _hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        # A new cpuset group is empty, and no process may enter it.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (group / file).exists() and not _unified():
                (group / file).write_text((hierarchy / file).read_text())
    if _unified():
        available = (MOUNT / "cgroup.controllers").read_text().split()
        (MOUNT / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in available))


def end(name: str) -> None:
    """Kills every process of the group and removes it with all that is below it."""
    deadline = time.monotonic() + KILL_SECONDS
    while pids := set(_processes(name)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes of {name} do not end on SIGKILL: {sorted(pids)}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / name, topdown=False):
            Path(folder).rmdir()


def has_processes(name: str) -> bool:
    return any(_processes(name))


def _processes(name: str) -> Iterator[int]:
    for hierarchy in _hierarchies():
        for file in (hierarchy / name).rglob("cgroup.procs"):
            with contextlib.suppress(FileNotFoundError):
                # A process of another PID namespace reads as 0.
                yield from (pid for line in file.read_text().split() if (pid := int(line)))


def _unified() -> bool:
    return (MOUNT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    if _unified():
        return [MOUNT]
    return [path for path in MOUNT.iterdir() if path.is_dir() and not path.is_symlink()]
