"""The end of an appliance: no new leases, time for those there are, then the end for all."""

import asyncio
import contextlib
import logging

from remotegpu.appliance.leases.leases import Leases
from remotegpu.appliance.sessions.sessions import Sessions

_log = logging.getLogger(__name__)


class Drain:
    """`begin` may be called again with another deadline, as by a second signal. `idle` is set while nobody needs us."""

    def __init__(self, leases: Leases, sessions: Sessions, idle: asyncio.Event, seconds: float) -> None:
        self._leases = leases
        self._sessions = sessions
        self._idle = idle
        self._seconds = seconds
        self._begun = asyncio.Event()
        self._changed = asyncio.Event()

    def begin(self, seconds: float) -> int:
        """How many sessions are alive now."""
        alive = len(self._sessions.all())
        if not self._begun.is_set():
            _log.info("draining: %d sessions have up to %.0f s", alive, seconds)
        self._leases.draining = True
        self._seconds = seconds
        self._begun.set()
        self._changed.set()
        return alive

    def signalled(self) -> None:
        """The first signal drains, a second one does not wait."""
        self.begin(0 if self._begun.is_set() else self._seconds)

    def announce(self, seconds: float) -> int:
        """Only say that it drains. In Kubernetes the operator ends the pod; kubelet would start us again."""
        del seconds
        self._leases.draining = True
        return len(self._sessions.all())

    async def finished(self) -> None:
        """Wait for the beginning, then until nobody needs us, or the deadline."""
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
