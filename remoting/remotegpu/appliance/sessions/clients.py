"""Identifies the process of a session's client, and detects when the process ends.

A closed connection does not prove it: a tunnel or a sidecar may have closed the connection. The kernel knows which
processes of this machine are alive, however they connect. A client reports its own process; with a false report it can
end only its own session. If the appliance cannot see a process, another client of the lease that sees it reports the
end.
"""

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MOST_NAME: Final = 256
# The index of the start time in /proc/PID/stat, counted from the field after the program's name (proc_pid_stat(5)).
_START: Final = 22 - 3


class Client:
    """The process of a client, on this machine or another one."""

    def __init__(self, pid: int, name: str) -> None:
        """Takes the client's report: its pid, and `name` with boot id, PID namespace and start time."""
        self.pid = pid
        self.name = name
        self.ended = False
        self._watched: int | None = None
        self._closed = False

    @classmethod
    def of(cls, pid: int, name: str) -> Self | None:
        """Returns the client of a report; None if the report has no valid name."""
        return cls(pid, name) if name and len(name) <= _MOST_NAME else None

    def is_same(self, other: "Client | None") -> bool:
        """Whether both are one process. A process has one session of a lease, so after exec the earlier one is over."""
        return other is not None and (self.pid, self.name) == (other.pid, other.name)

    def sees(self, other: "Client | None") -> bool:
        """Whether both are in one PID namespace of one machine, so that each can detect the end of the other."""
        return other is not None and self.name.rpartition(" ")[0] == other.name.rpartition(" ")[0] != ""

    async def watch(self, on_end: Callable[[], None]) -> None:
        """Calls `on_end` when the process has ended, if the process is visible on this machine."""
        pid: int | None = self.pid
        if identity(self.pid) != self.name:
            # A process in another container has another pid here.
            pid = await asyncio.to_thread(_number_here, self.pid, self.name)
        if pid is None or self._closed:
            return
        with contextlib.suppress(OSError):
            watched = os.pidfd_open(pid)
            # The open pidfd refers to one process, so this check finds a reused pid.
            if identity(pid) != self.name:
                os.close(watched)
                return
            self._watched = watched
            asyncio.get_running_loop().add_reader(watched, self._has_ended, on_end)

    def close(self) -> None:
        """Stops watching."""
        self._closed = True
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            os.close(self._watched)
            self._watched = None

    def _has_ended(self, on_end: Callable[[], None]) -> None:
        self.close()
        self.ended = True
        on_end()


def identity(pid: int) -> str:
    """Returns the name that the process with this pid would report; empty if it is not visible."""
    with contextlib.suppress(OSError, IndexError):
        # The link of a process in our own namespace may be unreadable, so ours is read.
        inside = len(_numbers(pid)) > 1
        namespace = Path(f"/proc/{pid}/ns/pid" if inside else "/proc/self/ns/pid").readlink()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return f"{_boot()} {namespace} {fields[_START].decode()}"
    return ""


def _number_here(pid: int, name: str) -> int | None:
    """Returns the pid in our namespace of a process with `pid` and `name` in a nested one; None if there is none."""
    if not name.startswith(f"{_boot()} "):
        return None
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with contextlib.suppress(OSError):
                numbers = _numbers(int(each.name))
                if len(numbers) > 1 and numbers[-1] == pid and identity(numbers[0]) == name:
                    return numbers[0]
    return None


@functools.cache
def _boot() -> str:
    return _BOOT_ID.read_text().strip()


def _numbers(pid: int) -> list[int]:
    """Returns the pids of a process in our PID namespace and in each nested one, down to its own."""
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return next(([int(each) for each in line.split()[1:]] for line in lines if line.startswith("NSpid:")), [])
