"""Identifies the process of a session's client, and notices its end.

A closed connection proves little: a tunnel or a sidecar may have closed it. The kernel of this machine knows which of
its processes live, however they reach the appliance. A client names its own process; a client that lies can
end only its own session. Where we cannot see a process, another client of the same lease that sees it reports its end.
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
# Index among the fields behind the program's name, the first of which is the third (proc_pid_stat(5)).
_START: Final = 22 - 3


class Client:
    """A process, of this machine or another one."""

    def __init__(self, pid: int, name: str) -> None:
        """`name`: the client's own account: boot id, PID namespace and start."""
        self.pid = pid
        self.name = name
        self.ended = False
        self._watched: int | None = None
        self._closed = False

    @classmethod
    def of(cls, pid: int, name: str) -> Self | None:
        """Returns None if the client does not know its process."""
        return cls(pid, name) if name and len(name) <= _MOST_NAME else None

    def is_same(self, other: "Client | None") -> bool:
        """Whether both are one process. It has one session of a lease, so the earlier one is over: it called exec."""
        return other is not None and (self.pid, self.name) == (other.pid, other.name)

    def sees(self, other: "Client | None") -> bool:
        """Whether both name one PID namespace of one boot: then each notices the other's end."""
        return other is not None and self.name.rpartition(" ")[0] == other.name.rpartition(" ")[0] != ""

    async def watch(self, on_end: Callable[[], None]) -> None:
        """Calls `on_end` when it has ended, if it is a process of this machine that we see."""
        pid: int | None = self.pid
        if identity(self.pid) != self.name:
            # A process of a container next to us has another pid here.
            pid = await asyncio.to_thread(_number_here, self.pid, self.name)
        if pid is None or self._closed:
            return
        with contextlib.suppress(OSError):
            watched = os.pidfd_open(pid)
            # From here on the pid cannot be reused unnoticed.
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
    """Returns the name that the client with this pid gives itself, if we can see the process; else empty."""
    with contextlib.suppress(OSError, IndexError):
        # For a process in our namespace the link may not be readable.
        inside = len(_numbers(pid)) > 1
        namespace = Path(f"/proc/{pid}/ns/pid" if inside else "/proc/self/ns/pid").readlink()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return f"{_boot()} {namespace} {fields[_START].decode()}"
    return ""


def _number_here(pid: int, name: str) -> int | None:
    """Returns the pid here of a process with this pid and name in a namespace below ours; None if there is none."""
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
    """Returns its pid in our namespace and in each below, down to its own (proc_pid_status(5))."""
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return next(([int(each) for each in line.split()[1:]] for line in lines if line.startswith("NSpid:")), [])
