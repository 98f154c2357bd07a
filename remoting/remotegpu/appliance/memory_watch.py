"""Ends sessions that hold too much of this machine's memory. No limit of theirs stands in their own processes."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NoReturn

from remotegpu.api.quantities import format_bytes
from remotegpu.appliance.budgets import Excess, HostMemory
from remotegpu.appliance.held import held_by
from remotegpu.appliance.room import Room
from remotegpu.appliance.sessions import CUDA_ERROR_DEVICE_UNAVAILABLE, Sessions
from remotegpu.appliance.state import Session

_log = logging.getLogger(__name__)

# How often all of them are measured.
_MEASURE_SECONDS: Final = 2.0
# How often the appliance's own limit is looked at: a program fills half a gigabyte in that time.
_LOOK_SECONDS: Final = 0.1
# To tell its client why. Meanwhile it may take more.
_LAST_WORDS_SECONDS: Final = 0.2


class MemoryWatch:
    """`room`: what all may hold together; None if only the machine limits it."""

    def __init__(self, sessions: Sessions, budgets: HostMemory, room: Room | None) -> None:
        self._sessions = sessions
        self._budgets = budgets
        self._room = room
        self._ends: set[asyncio.Task[None]] = set()

    async def run(self) -> NoReturn:
        """Look from time to time what sessions hold, and end those that hold too much. For a task of its own."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if loop.time() >= due:
                self._measure()
                for excess in self._budgets.excesses(list(self._sessions.leases())):
                    self._end(excess, at_once=False)
                due = loop.time() + _MEASURE_SECONDS
            if self._room is not None and self._room.used() > self._room.most and not self._ends:
                self._measure()
                for excess in largest(self._sessions.all(), self._room.used() - self._room.most, self._room.limit):
                    self._end(excess, at_once=True)
            await asyncio.sleep(_MEASURE_SECONDS if self._room is None else _LOOK_SECONDS)

    def _measure(self) -> None:
        for session in self._sessions.all():
            process = session.process
            children = process is not None and process.kind == "acceptor"  # a worker starts no process
            session.host_bytes = held_by(process.pid, session.uid, children=children) if process is not None else 0

    def _end(self, excess: Excess, *, at_once: bool) -> None:
        for session in excess.sessions:
            session.ended = True  # before the tenant is looked at
            _log.warning("session %s ends: %s", session.session_id[:8], excess.sentence)
            task = asyncio.create_task(self._end_one(session, excess.sentence, at_once=at_once))
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    async def _end_one(self, session: Session, sentence: str, *, at_once: bool) -> None:
        ending = asyncio.create_task(self._sessions.end(session, CUDA_ERROR_DEVICE_UNAVAILABLE, sentence))
        if at_once and session.process is not None:
            await asyncio.wait([ending], timeout=_LAST_WORDS_SECONDS)
            if not ending.done():
                await session.process.kill()
        await ending


def largest(sessions: Iterable[Session], excess: int, limit: int) -> Iterable[Excess]:
    """Those that hold most, until the rest holds so much less."""
    ending: list[Session] = []
    living = sorted((each for each in sessions if not each.ended), key=lambda each: each.host_bytes, reverse=True)
    for session in living:
        if excess <= 0:
            break
        ending.append(session)
        excess -= session.host_bytes
    if ending:
        yield Excess(
            f"the appliance comes near the {format_bytes(limit)} of memory that its container may have, and this "
            "process holds most: copy less at a time, or have the limit raised (in a pool: spec.resources)",
            ending,
        )
