"""User ids for workers: each live session has its own, and the appliances of one machine use different ids."""

import contextlib
import errno
import fcntl
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from remotegpu.appliance.handover import State, kept, taken

# The number of ids in a block. An appliance takes one block, and another when the first is full.
BLOCK: Final = 256
BLOCKS: Final = range(64000, 59999, -BLOCK)
# The folder has a file for each block, which its appliance locks. Only root can open the folder, so no other user can
# take a block.
LOCKS: Final = Path("/run/remotegpu-uids")
# Errors of locks on a read-only or missing file system, where no other user can create the folder either.
_NO_PLACE: Final = (errno.EROFS, errno.ENOENT)
_log = logging.getLogger(__name__)


class NoUidsError(Exception):
    """Raised if no user id is free for sessions. The message has the cause and the remedy."""


def _lock(folder: Path, base: int) -> int | None:
    """Locks a block and returns the open file; None if another appliance has the block. Raises OSError.

    The kernel releases the lock when the process ends, even if it is killed.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = folder.stat(follow_symlinks=False)
    if owner.st_uid != 0 or owner.st_mode & 0o077:
        raise PermissionError(0, "others than root may change it")
    file = os.open(folder / str(base), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _name(base: int) -> int | None:
    """Binds the socket name that reserves the block for appliances of the previous release; None if it is taken.

    Any process can bind the name, so only the lock decides. The next release will not have this name.
    """
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as holder:
        try:
            holder.bind(f"\0remotegpu-uids-{base}")
        except OSError:
            return None
        return holder.detach()


@dataclass(slots=True)
class _Block:
    ids: range
    lock: int | None  # the locked file
    name: int | None  # a socket
    used: set[int] = field(default_factory=set)

    def take(self) -> int | None:
        uid = next((uid for uid in self.ids if uid not in self.used), None)
        if uid is not None:
            self.used.add(uid)
        return uid

    def close(self) -> None:
        for held in (self.lock, self.name):
            if held is not None:
                os.close(held)
        self.lock = self.name = None


class Uids:
    """Allocates user ids, if the appliance runs as root.

    With base 0, workers keep the appliance's own id, for example where root may not change ids. Without a base, ids
    come from the first block that no other appliance of this machine has, and from more blocks if that is full.
    """

    def __init__(self, base: int | None = None, blocks: Sequence[int] = BLOCKS, locks: Path = LOCKS) -> None:
        """Takes the first block. Raises NoUidsError if no block is free."""
        self._choices: Sequence[int] = ()
        self._locks = locks
        self._blocks: list[_Block] = []
        if os.geteuid() == 0 and base == 0:
            _log.warning("sessions run as root: give another --uid-base, or start the appliance as another user")
        if os.geteuid() != 0 or base == 0:
            return
        if base is not None:
            self._blocks.append(_Block(range(base, base + len(BLOCKS) * BLOCK), None, None))
            return
        self._choices = blocks
        try:
            claimed = self._claim_block()
        except OSError as error:
            if error.errno in _NO_PLACE and self._claim_by_name(str(error.strerror)):
                return
            raise NoUidsError(
                f"the user ids of sessions cannot be kept apart from those of other appliances: {locks}: "
                f"{error.strerror}; make it root's alone, or name {len(BLOCKS) * BLOCK} free ids by --uid-base"
            ) from None
        if not claimed:
            raise NoUidsError(
                "other appliances of this machine have all user ids for sessions: name "
                f"{len(BLOCKS) * BLOCK} free ones by --uid-base"
            )

    def _claim_block(self) -> bool:
        """Claims a block. Returns False if no block is free. Raises OSError."""
        for named in (True, False):
            for base in self._choices:
                if self._claim(base, named):
                    return True
        return False

    def _claim_by_name(self, why: str) -> bool:
        """Claims a block by its socket name alone, where files cannot be locked, as in a read-only container."""
        for base in self._choices:
            if (name := _name(base)) is not None:
                self._blocks.append(_Block(range(base, base + BLOCK), None, name))
                _log.warning(
                    "user ids from %d on are not locked in %s (%s): appliances of other containers may hand out the "
                    "same ones; name a block by --uid-base",
                    base,
                    self._locks,
                    why,
                )
                return True
        return False

    def _claim(self, base: int, named: bool) -> bool:
        """Claims the block at `base`. With `named`, only if its socket name is free too (see `_name`)."""
        lock = _lock(self._locks, base)
        if lock is None:
            return False
        name = _name(base)
        if named and name is None:
            os.close(lock)
            return False
        if name is None:
            _log.warning(
                "user ids from %d on are taken although another process has their name: an appliance of the release "
                "before has sessions with the same ones until it starts anew",
                base,
            )
        self._blocks.append(_Block(range(base, base + BLOCK), lock, name))
        return True

    def take(self) -> int | None:
        if not self._blocks:
            return None
        uid = self._take()
        if uid is None:
            # An OSError means that there is no further block: the folder, or a descriptor, is missing.
            with contextlib.suppress(OSError):
                uid = self._take() if self._claim_block() else None
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
        """Returns the state for `adopted`. The previous release's code reads `blocks` too."""

        def held(descriptor: int | None) -> int | None:
            return None if descriptor is None else kept(descriptor)

        return {
            "blocks": [(b.ids.start, b.ids.stop, held(b.name), sorted(b.used)) for b in self._blocks],
            "locks": [held(block.lock) for block in self._blocks],
        }

    @classmethod
    def adopted(cls, state: State, locks: Path = LOCKS) -> "Uids":
        """Takes over the blocks from a state that `handed` returned. The code of the previous release had no locks."""
        uids = cls.__new__(cls)
        uids._locks, uids._blocks = locks, []
        for (start, stop, name, used), lock in zip(
            state["blocks"], state.get("locks") or [None] * len(state["blocks"]), strict=True
        ):
            block = _Block(range(start, stop), lock, name, set(used))
            for held in (lock, name):
                if held is not None:
                    taken(held)
            if lock is None and name is not None:
                uids._lock_later(block)
            uids._blocks.append(block)
        held_ones = [block for block in uids._blocks if (block.lock, block.name) != (None, None)]
        uids._choices = BLOCKS if held_ones else ()
        return uids

    def _lock_later(self, block: _Block) -> None:
        with contextlib.suppress(OSError):
            block.lock = _lock(self._locks, block.ids.start)
        if block.lock is None:
            _log.warning(
                "user ids from %d on are not locked in %s: another appliance may hand out the same ones until this one "
                "starts anew",
                block.ids.start,
                self._locks,
            )

    def close(self) -> None:
        """Releases the blocks to other appliances."""
        for block in self._blocks:
            block.close()
