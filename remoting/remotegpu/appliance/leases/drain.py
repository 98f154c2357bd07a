"""The end of an appliance: no new leases, time for the present ones, then the end for all."""

import asyncio
import contextlib
import logging

from remotegpu.appliance.leases.leases import Leases
from remotegpu.appliance.sessions.sessions import Sessions

_log = logging.getLogger(__name__)


class Drain:
    """The drain. `begin` again, as by a second signal, sets another deadline. `idle` is set while nothing is in use."""

    def __init__(self, leases: Leases, sessions: Sessions, idle: asyncio.Event, seconds: float) -> None:
        self._leases = leases
        self._sessions = sessions
        self._idle = idle
        self._seconds = seconds
        self._begun = asyncio.Event()
        self._changed = asyncio.Event()

    def begin(self, seconds: float) -> int:
        """Begins to drain; returns how many sessions are alive now."""
        alive = len(self._sessions.all())
        if not self._begun.is_set():
            _log.info("draining: %d sessions have up to %.0f s", alive, seconds)
        self._leases.draining = True
        self._seconds = seconds
        self._begun.set()
        self._changed.set()
        return alive

    def signalled(self) -> None:
        """Drains at the first signal; a second one does not wait."""
        self.begin(0 if self._begun.is_set() else self._seconds)

    def announce(self, seconds: float) -> int:
        """Only announces the drain. In Kubernetes the operator ends the pod; kubelet would start us again."""
        del seconds
        self._leases.draining = True
        return len(self._sessions.all())

    async def finished(self) -> None:
        """Waits for the beginning, then until nothing is in use, or the deadline."""
        await self._begun.wait()
        since = asyncio.get_running_loop().time()
        idle = asyncio.ensure_future(self._idle.wait())
        try:
            while not idle.done():
                left = since + self._seconds - asyncio.get_running_loop().time()
                if left <= 0:
                    return
                self._changed.clear()
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({idle, changed}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        finally:
            idle.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await idle
