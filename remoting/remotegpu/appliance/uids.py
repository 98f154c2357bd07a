"""User ids for workers: one for each live session, and no two appliances of a machine use the same ones."""

import logging
import os
import socket
from collections.abc import Sequence
from typing import Final

# Each appliance takes one, and another when it has that many sessions.
BLOCK: Final = 256
BLOCKS: Final = range(64000, 59999, -BLOCK)
_log = logging.getLogger(__name__)


class NoUidsError(Exception):
    """As many sessions live as there are user ids for."""


def _claim(base: int) -> socket.socket | None:
    """Holds a block while the socket is open: the kernel forgets the name with the process, however that ends."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0remotegpu-uids-{base}")
    except OSError:
        holder.close()
        return None
    return holder


class Uids:
    """Only root can hand out user ids. With base 0 workers keep the appliance's own, as where root may not change its
    id. Without a base they are of the first block that no other appliance of this machine has, and of further ones when
    that is full."""

    def __init__(self, base: int | None = None, blocks: Sequence[int] = BLOCKS) -> None:
        self._used: set[int] = set()
        self._ids: list[range] = []
        self._free_blocks: list[int] = []
        self._holders: list[socket.socket] = []
        if os.geteuid() != 0 or base == 0:
            return
        if base is not None:
            self._ids.append(range(base, base + len(BLOCKS) * BLOCK))
            return
        self._free_blocks = list(blocks)
        if not self._claim_block():
            self._ids.append(range(blocks[0], blocks[0] + BLOCK))
            _log.warning(
                "other appliances have all user ids for workers; some are shared from %d on: give --uid-base", blocks[0]
            )

    def _claim_block(self) -> bool:
        for base in self._free_blocks:
            if holder := _claim(base):
                self._holders.append(holder)
                self._ids.append(range(base, base + BLOCK))
                self._free_blocks.remove(base)
                return True
        return False

    def take(self) -> int | None:
        if not self._ids:
            return None
        uid = self._unused()
        if uid is None and self._claim_block():
            uid = self._unused()
        if uid is None:
            raise NoUidsError(
                f"{len(self._used)} sessions have all user ids that this appliance hands out: end some of the "
                "processes that use CUDA, or start it with --uid-base"
            )
        self._used.add(uid)
        return uid

    def _unused(self) -> int | None:
        return next((uid for block in self._ids for uid in block if uid not in self._used), None)

    def give_back(self, uid: int | None) -> None:
        if uid is not None:
            self._used.discard(uid)

    def close(self) -> None:
        """Lets other appliances have the blocks."""
        for holder in self._holders:
            holder.close()
