"""Ends sessions that hold too much of this machine's memory, since their processes cannot be trusted with the limit."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

from remotegpu.api.quantities import format_bytes
from remotegpu.appliance.machine.held import Held, held_by
from remotegpu.appliance.machine.room import Room
from remotegpu.appliance.sessions.budgets import Excess, HostMemory
from remotegpu.appliance.sessions.sessions import CUDA_ERROR_DEVICE_UNAVAILABLE, Sessions
from remotegpu.appliance.sessions.state import Session

_log = logging.getLogger(__name__)

# The interval between measurements of all sessions.
_MEASURE_SECONDS: Final = 2.0
# The interval between checks of the appliance's own limit. A program fills half a gigabyte in that time.
_LOOK_SECONDS: Final = 0.1
# The time for a session to send its client the error, before it is killed. It may allocate more meanwhile.
_LAST_WORDS_SECONDS: Final = 0.2
# The time limit for the exact measurement of one session, since a tenant can make it long.
_SECONDS_OF_SESSION: Final = 0.25
_SECONDS_IN_HASTE: Final = 0.02
_HIDES: Final = (
    "a process of it does not let the appliance see what it holds, as one does whose program is a file that may be "
    "executed and not read: run programs that may be read"
)


class MemoryWatch:
    """Measures sessions and enforces `budgets`. `room` is the limit for all sessions together; None: no limit."""

    def __init__(self, sessions: Sessions, budgets: HostMemory, room: Room | None) -> None:
        self._sessions = sessions
        self._budgets = budgets
        self._room = room
        self._ends: set[asyncio.Task[None]] = set()
        # Kills that make room at once.
        self._kills: set[asyncio.Task[None]] = set()
        # Measurements may block, so they have a thread of their own.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="memory")
        self._hiding: set[str] = set()

    async def run(self) -> NoReturn:
        """Measures sessions regularly, and ends those that hold too much. To be run as a task; never returns."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if loop.time() >= due:
                hiding = await self._measure(_SECONDS_OF_SESSION)
                # Only the second time counts: a process in the middle of exec may hide once.
                for session in (each for each in hiding if each.session_id in self._hiding and not each.ended):
                    self._end(Excess(_HIDES, [session]), at_once=False)
                self._hiding = {each.session_id for each in hiding}
                for excess in self._budgets.excesses(list(self._sessions.leases())):
                    self._end(excess, at_once=False)
                due = loop.time() + _MEASURE_SECONDS
            if self._room is not None and self._room.used() > self._room.most and not self._kills:
                await self._measure(_SECONDS_IN_HASTE)
                for excess in largest(self._sessions.all(), self._room.used() - self._room.most, self._room.limit):
                    self._end(excess, at_once=True)
            await asyncio.sleep(_MEASURE_SECONDS if self._room is None else _LOOK_SECONDS)

    async def _measure(self, seconds: float) -> list[Session]:
        """Measures all sessions. Returns the sessions with processes that cannot be inspected."""
        measured = [(each, each.process) for each in self._sessions.all()]

        def measure() -> list[Held]:
            return [
                Held(0)
                if process is None
                # A worker starts no process.
                else held_by(process.pid, session.uid, children=process.kind == "acceptor", seconds=seconds)
                for session, process in measured
            ]

        found = await asyncio.get_running_loop().run_in_executor(self._thread, measure)
        for (session, _), held in zip(measured, found, strict=True):
            session.host_bytes = held.bytes
        return [session for (session, _), held in zip(measured, found, strict=True) if held.hides]

    def _end(self, excess: Excess, *, at_once: bool) -> None:
        for session in excess.sessions:
            _log.warning("session %s ends: %s", session.session_id[:8], excess.sentence)
            ending, session.ended = session.ended, True  # then the check of the tenant leaves it out
            if at_once:
                self._keep(self._kills, self._kill(session, excess.sentence, told=ending))
            else:
                self._keep(self._ends, self._sessions.end(session, CUDA_ERROR_DEVICE_UNAVAILABLE, excess.sentence))

    @staticmethod
    def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _kill(self, session: Session, sentence: str, *, told: bool) -> None:
        """Kills a session, after a short time for its last message. `told` says that it was already asked to end."""
        process = session.process
        if told and process is not None:
            return await process.kill()
        ending = asyncio.create_task(self._sessions.end(session, CUDA_ERROR_DEVICE_UNAVAILABLE, sentence))
        if process is not None:
            await asyncio.wait([ending], timeout=_LAST_WORDS_SECONDS)
            if not ending.done():
                await process.kill()
        await ending
        return None


def largest(sessions: Iterable[Session], excess: int, limit: int) -> Iterable[Excess]:
    """Yields the largest sessions whose end frees `excess` bytes. Sessions that are already ending come first.

    Yields nothing if all sessions together hold less: then something else holds the memory.
    """
    ending: list[Session] = []
    living = sorted(sessions, key=lambda each: (each.ended, each.host_bytes), reverse=True)
    if sum(each.host_bytes for each in living) < excess:
        return
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
