"""The acceptor's questions to the client's file server, with its errors as the file system's."""

import json
import os
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from remotegpu.offload.code.link import Link
from remotegpu.offload.files.cache import Cache
from remotegpu.offload.wire.frames import Buffer, Message, Service


class RemoteFiles:
    """`counters`: requests by operation (each a round trip), and bytes both ways."""

    def __init__(self, link: Link, cache: Cache) -> None:
        self.cache = cache
        self.counters: Counter[str] = Counter()
        self._link = link
        self._lock = threading.Lock()

    def ask(self, op: str, path: str = "", **more: Any) -> Message:
        """Raises OSError as the client's file system or rules say, with `path` in it."""
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
        """A change without an answer; what goes wrong with it is told when the file is closed."""
        self._link.notify(Service.FILES, {"op": op, **more}, buffers)

    def stat(self, path: str, *, follow: bool = True) -> os.stat_result:
        return stat_result(self.ask("stat", path, follow=follow).header["stat"])

    def list(self, path: str) -> list[tuple[str, os.stat_result]]:
        """The entries with their own status, links not followed."""
        content = bytes(self.ask("list", path).buffers[0])
        return [(name, stat_result(status)) for name, status in json.loads(content)]


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
