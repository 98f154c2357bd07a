"""The memory that the appliance may use before the kernel kills: the limit of its cgroup, as in a pod."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from remotegpu.appliance.machine.cgroups import own_groups

# By whether it is version 2: limit, use, and the reclaimable parts of the use.
_FILES = {
    True: ("memory.max", "memory.current", ("inactive_file", "active_file")),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}
# Kept free, since sessions allocate between two measurements; the second value is for small limits.
_MARGIN = 512 << 20
_LEAST_MARGIN = 64 << 20
# Version 1 reports this number or more if there is no limit.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Room:
    """The cgroup with the lowest memory limit that applies to the appliance."""

    folder: Path
    second: bool
    limit: int

    @property
    def most(self) -> int:
        """The bytes that all processes of the appliance may hold: less than the limit, to act before the kernel."""
        return self.limit - min(_MARGIN, max(self.limit // 4, min(_LEAST_MARGIN, self.limit // 2)))

    def used(self) -> int:
        """Returns the used bytes without reclaimable file caches; 0 if they cannot be read."""
        _, use, kept = _FILES[self.second]
        try:
            lines = (self.folder / "memory.stat").read_text(encoding="ascii").splitlines()
            stat = dict(line.split(" ", 1) for line in lines if " " in line)
            whole = int((self.folder / use).read_text(encoding="ascii"))
            return whole - sum(int(stat.get(name, "0")) for name in kept)
        except (OSError, ValueError):
            return 0


@cache
def own_room() -> Room | None:
    """Returns the cgroup with the lowest memory limit among ours and their parents; None if there is no limit."""
    found = [room for parent in own_groups() for room in _rooms(parent.folder, second=parent.second)]
    return min(found, key=lambda room: room.limit, default=None)


def _rooms(folder: Path, *, second: bool) -> Iterator[Room]:
    """Yields this cgroup and its visible parents, if they have a limit."""
    name, _, _ = _FILES[second]
    for each in (folder, *folder.parents):
        # The root cgroup and the folders above it have no such file.
        with contextlib.suppress(OSError, ValueError):
            limit = int((each / name).read_text(encoding="ascii"))
            if limit < _NO_LIMIT:
                yield Room(each, second, limit)
