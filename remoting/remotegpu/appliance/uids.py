"""User ids for workers: one for each live session, and no two appliances of a machine use the same ones."""

import logging
import os
import socket
from collections.abc import Sequence
from typing import Final

# Each appliance takes one.
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
    id. Without a base it is the first block that no other appliance of this machine has."""

    def __init__(self, base: int | None = None, blocks: Sequence[int] = BLOCKS) -> None:
        self._used: set[int] = set()
        self._holder: socket.socket | None = None
        self._base = base or 0
        if base is None and os.geteuid() == 0:
            self._choose(blocks)

    def _choose(self, blocks: Sequence[int]) -> None:
        for base in blocks:
            self._holder = _claim(base)
            if self._holder is not None:
                self._base = base
                return
        self._base = blocks[0]
        _log.warning(
            "other appliances have all user ids for workers; some are shared from %d on: give --uid-base", self._base
        )

    def take(self) -> int | None:
        if os.geteuid() != 0 or self._base == 0:
            return None
        uid = next((uid for uid in range(self._base, self._base + BLOCK) if uid not in self._used), None)
        if uid is None:
            raise NoUidsError(f"{BLOCK} sessions have all user ids that this appliance hands out")
        self._used.add(uid)
        return uid

    def give_back(self, uid: int | None) -> None:
        if uid is not None:
            self._used.discard(uid)

    def close(self) -> None:
        """Lets another appliance have the block."""
        if self._holder is not None:
            self._holder.close()
