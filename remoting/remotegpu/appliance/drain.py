"""The end of an appliance: no new leases, time for those there are, then the end for all."""

import asyncio
import contextlib
import logging

from remotegpu.appliance.leases import Leases
from remotegpu.appliance.sessions import Sessions

_log = logging.getLogger(__name__)


class Drain:
    """`begin` may be called again with another deadline, as by a second signal."""

    def __init__(self, leases: Leases, sessions: Sessions, seconds: float) -> None:
        self._leases = leases
        self._sessions = sessions
        self._seconds = seconds
        self._begun = asyncio.Event()
        self._changed = asyncio.Event()

    def begin(self, seconds: float) -> int:
        """How many sessions are alive now."""
        alive = len(self._sessions.all())
        if not self._leases.draining:
            _log.info("draining: %d sessions have up to %.0f s", alive, seconds)
        self._leases.draining = True
        self._seconds = seconds
        self._begun.set()
        self._changed.set()
        return alive

    def signalled(self) -> None:
        """The first signal drains, a second one does not wait."""
        self.begin(0 if self._leases.draining else self._seconds)

    async def finished(self) -> None:
        """Wait for the beginning, then until no lease is left, or the deadline."""
        await self._begun.wait()
        since = asyncio.get_running_loop().time()
        none_left = asyncio.ensure_future(self._leases.none_left.wait())
        try:
            while not none_left.done():
                left = since + self._seconds - asyncio.get_running_loop().time()
                if left <= 0:
                    return
                self._changed.clear()
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({none_left, changed}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        finally:
            none_left.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await none_left
