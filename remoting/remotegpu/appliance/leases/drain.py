"""Drains an appliance: opens no new lease, gives present leases time, then ends them."""

import asyncio
import contextlib
import logging

from remotegpu.appliance.leases.leases import Leases
from remotegpu.appliance.sessions.sessions import Sessions

_log = logging.getLogger(__name__)


class Drain:
    """The drain of an appliance. `idle` must be set while nothing is in use. A second `begin` sets a new deadline."""

    def __init__(self, leases: Leases, sessions: Sessions, idle: asyncio.Event, seconds: float) -> None:
        self._leases = leases
        self._sessions = sessions
        self._idle = idle
        self._seconds = seconds
        self._begun = asyncio.Event()
        self._changed = asyncio.Event()

    def begin(self, seconds: float) -> int:
        """Begins to drain. Returns the number of sessions that are alive."""
        alive = len(self._sessions.all())
        if not self._begun.is_set():
            _log.info("draining: %d sessions have up to %.0f s", alive, seconds)
        self._leases.draining = True
        self._seconds = seconds
        self._begun.set()
        self._changed.set()
        return alive

    def signalled(self) -> None:
        """Handles a signal: the first one begins the drain, the second one sets the deadline to now."""
        self.begin(0 if self._begun.is_set() else self._seconds)

    def announce(self, seconds: float) -> int:
        """Stops new leases without a deadline, for Kubernetes: the operator ends the pod, as kubelet would restart it.

        Returns the number of sessions that are alive.
        """
        del seconds
        self._leases.draining = True
        return len(self._sessions.all())

    async def finished(self) -> None:
        """Waits until the drain begins, then until nothing is in use or the deadline is over."""
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
