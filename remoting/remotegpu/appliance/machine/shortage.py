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

# A session takes a dozen while it starts. With fewer free ones nothing new begins; the present ones may use them. Their
# number is an eighth of the limit, within these bounds.
_LEAST_DESCRIPTORS: Final = (24, 64)
# A worker without a context.
_LEAST_BYTES: Final = 64 << 20
# Descriptors that the appliance keeps open for a session: sockets of its worker and its turns, its client's process, an
# image.
OF_SESSION: Final = 8
_LIMIT: Final = re.compile(r"^Max open files\s+(\d+)", re.MULTILINE)
_AVAILABLE: Final = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


# Any client may ask for the inventory, as often as it likes.
_LOOK_SECONDS: Final = 1.0


class Shortage:
    """Tells why no session can be opened; looks once a second however often it is asked. For any thread. `look` looks
    now, for the one who is about to open a lease.

    `processes`: the appliance's own that a session takes descriptors of.
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
            self._until = now + _LOOK_SECONDS  # before the look: others who ask meanwhile get what was found last
            self.look()
        return self._found

    def look(self) -> str:
        self._found = shortage(self._processes(), self._room, before=bool(self._found))
        return self._found


def descriptors_of_tenant() -> int:
    """Returns how many descriptors of the appliance one tenant may have: half of those that are not kept free."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (limit - _least(limit)) // 2


def code_files() -> int:
    """Returns how many images of device code may be kept, each in an open file."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit // 8


def shortage(processes: Iterable[int], room: Room | None, *, before: bool = False) -> str:
    """Returns why no session can be opened, with the remedy; empty if one can.

    `processes`: the appliance's own that a session takes descriptors of. `before`: there was a shortage, which ends
    when twice as much is free. The text is the same while it lasts: the operator checks all waiting claims when it
    changes.
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
        return limit  # not even one is left for the look


def _available() -> int:
    found = _AVAILABLE.search(_text("/proc/meminfo"))
    return int(found[1]) << 10 if found else _LEAST_BYTES


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
