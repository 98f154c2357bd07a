"""User ids for workers: one for each live session, and no two appliances of a machine use the same ones."""

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from remotegpu.appliance.handover import State, kept, taken

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


@dataclass(slots=True)
class _Block:
    ids: range
    holder: socket.socket | None
    used: set[int] = field(default_factory=set)

    def take(self) -> int | None:
        uid = next((uid for uid in self.ids if uid not in self.used), None)
        if uid is not None:
            self.used.add(uid)
        return uid

    def close(self) -> None:
        if self.holder is not None:
            self.holder.close()


class Uids:
    """Only root can hand out user ids. With base 0 workers keep the appliance's own, as where root may not change its
    id. Without a base they are of the first block that no other appliance of this machine has, and of further ones
    while that is full."""

    def __init__(self, base: int | None = None, blocks: Sequence[int] = BLOCKS) -> None:
        self._choices: Sequence[int] = ()
        self._blocks: list[_Block] = []
        if os.geteuid() == 0 and base == 0:
            _log.warning("sessions run as root: give another --uid-base, or start the appliance as another user")
        if os.geteuid() != 0 or base == 0:
            return
        if base is not None:
            self._blocks.append(_Block(range(base, base + len(BLOCKS) * BLOCK), None))
            return
        self._choices = blocks
        if not self._claim_block():
            self._blocks.append(_Block(range(blocks[0], blocks[0] + BLOCK), None))
            _log.warning(
                "other appliances have all user ids for workers; some are shared from %d on: give --uid-base", blocks[0]
            )

    def _claim_block(self) -> bool:
        for base in self._choices:
            if holder := _claim(base):
                self._blocks.append(_Block(range(base, base + BLOCK), holder))
                return True
        return False

    def take(self) -> int | None:
        if not self._blocks:
            return None
        uid = self._take()
        if uid is None and self._claim_block():
            uid = self._take()
        if uid is None:
            used = sum(len(block.used) for block in self._blocks)
            raise NoUidsError(
                f"{used} sessions have all user ids that this appliance hands out: end some of the processes that use "
                "CUDA, or start it with --uid-base"
            )
        return uid

    def _take(self) -> int | None:
        return next((uid for block in self._blocks if (uid := block.take()) is not None), None)

    def give_back(self, uid: int | None) -> None:
        if uid is None:
            return
        block = next(block for block in self._blocks if uid in block.ids)
        block.used.discard(uid)
        if not block.used and block is not self._blocks[0]:
            block.close()
            self._blocks.remove(block)

    def handed(self) -> State:
        def holder(block: _Block) -> int | None:
            return None if block.holder is None else kept(block.holder.fileno())

        return {"blocks": [(b.ids.start, b.ids.stop, holder(b), sorted(b.used)) for b in self._blocks]}

    @classmethod
    def adopted(cls, state: State) -> "Uids":
        """Those that `handed` tells of."""
        uids = cls(0)
        for start, stop, holder, used in state["blocks"]:
            held = None if holder is None else socket.socket(fileno=taken(holder))
            uids._blocks.append(_Block(range(start, stop), held, set(used)))
        uids._choices = BLOCKS if any(block.holder for block in uids._blocks) else ()
        return uids

    def close(self) -> None:
        """Lets other appliances have the blocks."""
        for block in self._blocks:
            block.close()
