"""The acceptor's requests to the client's file server. Errors of the client become OSError."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from remotegpu_offload.code.link import Link
from remotegpu_offload.files.cache import BLOCK, Cache
from remotegpu_offload.wire.frames import Buffer, Message, Service


class RemoteFiles:
    """Sends requests about files to the client. `counters`: requests by operation (each a round trip), and bytes."""

    def __init__(self, link: Link, cache: Cache) -> None:
        self.cache = cache
        self.counters: Counter[str] = Counter()
        # Closed files that the program has still mapped writable.
        self.mapped: list[Written] = []
        self._link = link

    def ask(self, op: str, path: str = "", **more: Any) -> Message:
        """Sends a request and returns the answer. Raises the client's OSError, with `path` in it."""
        if self.mapped and op in ("open", "stat", "list"):
            self.sync()
        self.counters[op] += 1
        header = {"op": op, **more}
        if path:
            header["path"] = path
        reply = self._link.request(Service.FILES, header)
        if "error" in reply.header:
            number, reason = reply.header["error"]
            if "to" in more:
                raise OSError(number, reason, path, None, more["to"])
            raise OSError(number, reason, path or None)
        return reply

    def tell(self, op: str, buffers: Sequence[Buffer] = (), **more: Any) -> None:
        """Sends a change without waiting for an answer. An error is reported when the file is closed."""
        self._link.notify(Service.FILES, {"op": op, **more}, buffers)

    def sync(self) -> None:
        """Sends data that was written through memory maps, and closes files that are no longer mapped.

        Raises OSError.
        """
        written, self.mapped = self.mapped, []
        for file in written:
            file.write_back()
            if file.is_mapped():
                self.ask("close", handle=file.handle, keep=True)
                self.mapped.append(file)
            else:
                file.close()

    def stat(self, path: str, *, follow: bool = True) -> os.stat_result:
        return stat_result(self.ask("stat", path, follow=follow).header["stat"])

    def list(self, path: str) -> list[tuple[str, os.stat_result]]:
        """Returns the entries of a folder, each with its status; links are not followed."""
        content = bytes(self.ask("list", path).buffers[0])
        return [(name, stat_result(status)) for name, status in json.loads(content)]


class Written:
    """The descriptor of a written file that a program asked for, and digests of the content that the client has."""

    def __init__(self, remote: RemoteFiles, handle: int, fd: int) -> None:
        self.remote = remote
        self.handle = handle
        self.fd = fd
        self.size = 0
        self._digests: list[bytes] = []

    def known(self, content: Buffer) -> None:
        """Records that the client has this content as the next block."""
        self._digests.append(_digest(content))
        self.size += len(content)

    def show(self, content: Buffer, offset: int) -> None:
        """Sends newly written data at once, for other processes that open the file before it is closed.

        `write_back` sends these blocks again, because they may contain data that was written through the descriptor.
        """
        self.remote.tell("write", [content], handle=self.handle, offset=offset)
        self.size = max(self.size, offset + len(content))

    def write_back(self) -> None:
        """Sends the blocks that the client lacks."""
        size = os.fstat(self.fd).st_size
        for number, offset in enumerate(range(0, size, BLOCK)):
            content = os.pread(self.fd, BLOCK, offset)
            digest = _digest(content)
            if number >= len(self._digests):
                self._digests.append(b"")
            if digest != self._digests[number]:
                self._digests[number] = digest
                self.remote.counters["bytes_written"] += len(content)
                self.remote.tell("write", [content], handle=self.handle, offset=offset)
        if size != self.size:
            self.remote.tell("truncate", handle=self.handle, size=size)
            self.size = size

    def is_mapped(self) -> bool:
        """Returns whether this process has the file mapped."""
        status = os.fstat(self.fd)
        wanted = (f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}", str(status.st_ino))
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return any(tuple(line.split(maxsplit=5)[3:5]) == wanted for line in maps)

    def close(self) -> None:
        """Closes the file. Raises OSError for a failed write since the last report."""
        os.close(self.fd)
        self.remote.ask("close", handle=self.handle)


def _digest(content: Buffer) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def stat_result(status: Sequence[int]) -> os.stat_result:
    mode, inode, device, links, uid, gid, size, atime, mtime, ctime = status
    seconds = [int(time // 1_000_000_000) for time in (atime, mtime, ctime)]
    more = {
        "st_atime": atime / 1e9,
        "st_mtime": mtime / 1e9,
        "st_ctime": ctime / 1e9,
        "st_atime_ns": atime,
        "st_mtime_ns": mtime,
        "st_ctime_ns": ctime,
        "st_blksize": 4096,
        "st_blocks": (size + 511) // 512,
        "st_rdev": 0,
    }
    return os.stat_result((mode, inode, device, links, uid, gid, size, *seconds), more)
