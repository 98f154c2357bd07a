"""Finds out whether too few descriptors or too little memory is left to open a session."""

import os
import re
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from remotegpu.api.quantities import format_bytes
from remotegpu.appliance.machine.room import Room

# The bounds of the descriptors that are kept free for present sessions: an eighth of the limit. A session needs about
# a dozen while it starts.
_LEAST_DESCRIPTORS: Final = (24, 64)
# The memory of a worker without a context.
_LEAST_BYTES: Final = 64 << 20
# The descriptors that the appliance keeps open for a session: sockets of the worker and of its turns, the client's
# process, an image.
OF_SESSION: Final = 8
_LIMIT: Final = re.compile(r"^Max open files\s+(\d+)", re.MULTILINE)
_AVAILABLE: Final = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


# A result is reused for this time, since any client may ask for the inventory, without a limit.
_LOOK_SECONDS: Final = 1.0


class Shortage:
    """Returns the reason why no session can be opened, or "". Any thread may call it.

    A call measures at most once a second; `look`, for a caller that opens a lease, always measures. `processes` returns
    the pids of the appliance's own processes in which a session needs descriptors.
    """

    def __init__(
        self, processes: Callable[[], Iterable[int]], room: Room | None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._processes = processes
        self._room = room
        self._now = now
        self._found = ""
        self._until = 0.0

    def __call__(self) -> str:
        if (now := self._now()) >= self._until:
            self._until = now + _LOOK_SECONDS  # set before `look`: concurrent callers get the last result
            self.look()
        return self._found

    def look(self) -> str:
        self._found = shortage(self._processes(), self._room, before=bool(self._found))
        return self._found


def descriptors_of_tenant() -> int:
    """Returns the number of the appliance's descriptors that one tenant may have: half of those not kept free."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (limit - _least(limit)) // 2


def code_files() -> int:
    """Returns the number of images of device code that may be cached, each in an open file."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit // 8


def shortage(processes: Iterable[int], room: Room | None, *, before: bool = False) -> str:
    """Returns the reason why no session can be opened, with the remedy; empty if one can.

    `processes` are the pids of the appliance's own processes in which a session needs descriptors. If there was a
    shortage `before`, it ends only when twice as much is free. The text stays the same during a shortage: when the text
    changes, the operator checks all waiting claims.
    """
    times = 2 if before else 1
    for pid in processes:
        limit = _descriptor_limit(pid)
        if limit - _open(pid, limit) < times * _least(limit):
            return (
                f"fewer than {_least(limit)} of {limit} descriptors are free: end some of the programs, or start the "
                "appliance with more (LimitNOFILE= of its unit, ulimit -n)"
            )
    free_bytes = _available() if room is None else room.most - room.used()
    if free_bytes < times * _LEAST_BYTES:
        whose = "this machine" if room is None else "the appliance's container"
        least = format_bytes(_LEAST_BYTES)
        return f"less than {least} of memory of {whose} is left: end some of the programs, or give it more"
    return ""


def _least(limit: int) -> int:
    least, most = _LEAST_DESCRIPTORS
    return max(least, min(most, limit // 8))


def _descriptor_limit(pid: int) -> int:
    found = _LIMIT.search(_text(f"/proc/{pid}/limits"))
    return int(found[1]) if found else resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _open(pid: int, limit: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 (descriptors, not files)
    except (FileNotFoundError, PermissionError):
        return 0  # it has ended
    except OSError:
        return limit  # no descriptor is left to list the folder


def _available() -> int:
    found = _AVAILABLE.search(_text("/proc/meminfo"))
    return int(found[1]) << 10 if found else _LEAST_BYTES


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
