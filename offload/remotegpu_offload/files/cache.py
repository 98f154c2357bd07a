"""Copies of the client's files in the session's folder, filled block by block.

A key shows whether a copy is current.
"""

import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

BLOCK: Final = 1 << 20
# The largest read-ahead of a sequential reader, in blocks. The read-ahead begins at one block and doubles.
MOST_AHEAD: Final = 16

Fetch = Callable[[int, int], bytes | bytearray | memoryview]  # offset, count


class Copy:
    """A copy of one version of a file. Fetches blocks when they are read, and reads ahead for a sequential reader."""

    def __init__(self, folder: str, size: int) -> None:
        self.size = size
        self.pid = os.getpid()
        self.fd, self.path = tempfile.mkstemp(dir=folder, prefix="page-")
        os.ftruncate(self.fd, size)
        self.users = 0
        self._blocks = bytearray((size + BLOCK - 1) // BLOCK)
        self._ahead = 1
        self._next = 0
        self._lock = threading.Lock()

    @property
    def complete(self) -> bool:
        return 0 not in self._blocks

    def put(self, offset: int, content: bytes | bytearray | memoryview) -> None:
        """Stores content. `offset` begins a block, and `content` ends at the end of a block or of the file."""
        done = 0
        view = memoryview(content)[: max(0, self.size - offset)]
        while done < len(view):
            done += os.pwrite(self.fd, view[done:], offset + done)
        first, last = offset // BLOCK, (offset + len(view) + BLOCK - 1) // BLOCK
        self._blocks[first:last] = b"\1" * (last - first)

    def need(self, offset: int, count: int, fetch: Fetch) -> None:
        """Fetches the missing blocks of a range.

        Raises the errors of `fetch`, and OSError if the file has become shorter.
        """
        first, last = offset // BLOCK, min(len(self._blocks), (offset + count + BLOCK - 1) // BLOCK)
        with self._lock:
            missing = self._blocks.find(0, first, last)
            while missing >= 0:
                self._ahead = min(MOST_AHEAD, 2 * self._ahead) if missing == self._next else 1
                wanted = max(self._ahead, min(MOST_AHEAD, last - missing))
                end = min(missing + wanted, len(self._blocks))
                known = self._blocks.find(1, missing, end)
                end = known if known >= 0 else end
                begin = missing * BLOCK
                wanted_bytes = min(end * BLOCK, self.size) - begin
                content = fetch(begin, wanted_bytes)
                if len(content) != wanted_bytes:
                    raise OSError(5, "the file became shorter at the client while it was read")
                self.put(begin, content)
                self._next = end
                missing = self._blocks.find(0, first, last)

    def drop(self) -> None:
        os.close(self.fd)
        os.unlink(self.path)


class Cache:
    """All copies of a process. Evicts unused copies, the oldest first, when they exceed `limit` bytes together."""

    def __init__(self, folder: str, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._copies: OrderedDict[str, tuple[list[Any], Copy]] = OrderedDict()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def known(self, path: str) -> tuple[list[Any], bool] | None:
        """Returns the key of the copy of `path`, and whether the copy is complete; None if there is no copy."""
        self._own()
        with self._lock:
            found = self._copies.get(path)
            return None if found is None else (found[0], found[1].complete)

    def take(self, path: str, key: list[Any], size: int) -> Copy:
        """Returns the copy with this key, a new and empty one if necessary. The caller must call `give_back`."""
        self._own()
        with self._lock:
            found = self._copies.get(path)
            if found is not None and found[0] != key:
                del self._copies[path]
                if not found[1].users:
                    found[1].drop()
                found = None
            copy = found[1] if found is not None else Copy(self.folder, size)
            copy.users += 1
            self._copies[path] = (key, copy)
            self._copies.move_to_end(path)
            self._shrink()
            return copy

    def give_back(self, copy: Copy) -> None:
        if copy.pid != os.getpid():
            return
        with self._lock:
            copy.users -= 1
            if not copy.users and all(copy is not kept for _, kept in self._copies.values()):
                copy.drop()
            else:
                self._shrink()

    def _own(self) -> None:
        """Starts an empty cache after a fork: the copies belong to the parent. Open copies stay usable here."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self._copies = OrderedDict()

    def _shrink(self) -> None:
        total = sum(copy.size for _, copy in self._copies.values())
        for path, (_, copy) in list(self._copies.items()):
            if total <= self.limit:
                return
            if not copy.users:
                del self._copies[path]
                total -= copy.size
                copy.drop()
