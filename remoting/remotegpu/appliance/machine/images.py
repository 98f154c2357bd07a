"""Files for the GPU memory of suspended sessions: in this machine's memory or on a disk, within limits."""

import errno
import fcntl
import os
from collections import Counter
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Final

from remotegpu.api.quantities import format_bytes

# The part of all room that one tenant may use. `budgets` has the same rule for the machine's memory.
_TENANTS_PART: Final = 0.75


class NoRoomError(Exception):
    """Raised if there is no room for an image. The message has the free and the total room."""


@dataclass(frozen=True, slots=True)
class ImageRoom:
    memory_bytes: int
    folder: Path | None = None  # for files that do not fit into memory
    disk_bytes: int = 0


class ImageFile:
    """An image file without a name. It is deleted when its last descriptor is closed. The worker seals it."""

    def __init__(self, file: FileIO, size: int, place: "_Place", tenant: str) -> None:
        self.file = file
        self.bytes = size
        self._used, self._tenant = place.used, tenant

    @property
    def closed(self) -> bool:
        return self.file.closed

    def excess(self) -> str:
        """Returns an error if the file exceeds its reservation, else "". A writer can enlarge a file on a disk."""
        has = 0 if self.file.closed else os.fstat(self.file.fileno()).st_size
        if has <= self.bytes:
            return ""
        return f"its image has {format_bytes(has)} and was given {format_bytes(self.bytes)}"

    def trim(self, size: int) -> None:
        """Reduces the image and its reservation to this size."""
        if size < self.bytes:
            os.ftruncate(self.file.fileno(), size)
            self._used[self._tenant] -= self.bytes - size
            self.bytes = size

    def close(self) -> None:
        if not self.file.closed:
            self.file.close()
            self._used[self._tenant] -= self.bytes


@dataclass(slots=True)
class _Place:
    option: str
    most: int
    folder: Path | None
    # Reserved bytes of each tenant.
    used: Counter[str] = field(default_factory=Counter)

    def open(self) -> FileIO:
        if self.folder is None:
            return FileIO(os.memfd_create("remotegpu-image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b")
        return FileIO(os.open(self.folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), "r+b")

    def said(self) -> str:
        where = "in memory" if self.folder is None else f"in {self.folder}"
        left = max(0, self.most - self.used.total())
        return f"{format_bytes(left)} of {format_bytes(self.most)} {where} ({self.option})"


class Images:
    """All images of the appliance."""

    def __init__(self, room: ImageRoom) -> None:
        self._places = [_Place("--suspend-memory", room.memory_bytes, None)]
        if room.folder is not None:
            self._places.append(_Place("--suspend-disk", room.disk_bytes, room.folder))

    def create(self, size: int, tenant: str) -> ImageFile:
        """Creates a file with `size` reserved bytes for a tenant. Blocks: not for an event loop.

        An empty `tenant` has no limit of its own. Raises NoRoomError.
        """
        has = sum(place.used[tenant] for place in self._places)
        most = int(sum(place.most for place in self._places) * _TENANTS_PART)
        if tenant and has + size > most:
            raise NoRoomError(
                f"NoRoom: {format_bytes(size)} have to be kept, and {tenant} has {format_bytes(has)} of the "
                f"{format_bytes(most)} that one tenant may have in images: resume one of its shares"
            )
        told = []
        for place in self._places:
            if place.used.total() + size > place.most:
                told.append(place.said())
                continue
            place.used[tenant] += size
            try:
                return ImageFile(_filled(place, size), size, place, tenant)
            except OSError as error:
                place.used[tenant] -= size
                told.append(f"{place.said()}, but the system says: {error.strerror}")
        raise NoRoomError(f"NoRoom: {format_bytes(size)} have to be kept, and there are {'; '.join(told)}")


def _filled(place: _Place, size: int) -> FileIO:
    file = place.open()
    try:
        if size:
            os.posix_fallocate(file.fileno(), 0, size)
        if place.folder is None:
            # The writer is a process of a tenant and must not enlarge the file.
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        elif os.fstat(file.fileno()).st_blocks * 512 < size:
            raise OSError(errno.ENOSPC, "no room is reserved there")
    except OSError:
        file.close()
        raise
    return file
