"""Decides which GPUs take new leases. An error that a worker reports only starts a test: a tenant can fake it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf

from remotegpu.appliance.backends.xids import Effect, Xid
from remotegpu.appliance.gpus.hardware import SelfTest
from remotegpu.appliance.shares.allocation import Capacity

_log = logging.getLogger(__name__)

WATCH_SECONDS = 5.0
# The interval between tests of an unhealthy or suspected GPU.
RETEST_SECONDS = 30.0


class GpuHealth:
    """Polls the driver, and tests GPUs that are suspected or unhealthy.

    A GPU that an XID made unhealthy is healthy again when the driver reports no problem and a test passes. If the XID
    requires a reset and the driver cannot report a pending reset, the GPU stays unhealthy until the appliance restarts.
    """

    def __init__(
        self,
        gpus: Sequence[Capacity],
        *,
        problem: Callable[[int], str],
        test: Callable[[int], Awaitable[SelfTest]] | None,
        tells_recovery: Callable[[int], bool],
        retest_seconds: float = RETEST_SECONDS,
    ) -> None:
        self._gpus = gpus
        self._problem = problem
        self._test = test
        self._retest_seconds = retest_seconds
        self._tells_recovery = tells_recovery
        self._suspected: dict[int, str] = {}
        self._struck: dict[int, Xid] = {}
        self._tested: dict[int, float] = {}

    def suspect(self, gpu: int, message: str) -> None:
        """Marks a GPU for a test after a session reported an error that a healthy GPU does not give."""
        _log.warning("gpu %d is suspected: %s", gpu, message)
        self._suspected[gpu] = message

    def strike(self, gpu: int, xid: Xid) -> None:
        """Handles an XID that the driver reported."""
        match xid.effect:
            case Effect.PROGRAM:
                _log.info("gpu %d: %s, the error of a program", gpu, xid)
            case Effect.SUSPECT:
                self.suspect(gpu, str(xid))
            case Effect.UNFIT | Effect.RESET:
                # An XID that needs a reset stays: other XIDs often follow it.
                before = self._struck.get(gpu)
                if before is None or before.effect is not Effect.RESET:
                    self._struck[gpu] = xid
                # Delays the next test, since the driver may need a moment to choose a recovery action.
                self._tested[gpu] = asyncio.get_running_loop().time()
                self._mark(gpu, self._of_xid(gpu))

    async def watch(self, on_recovery: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for gpu in range(len(self._gpus)):
                if await self.look_at(gpu):
                    on_recovery()

    async def look_at(self, gpu: int) -> bool:
        """Asks the driver about a GPU, and tests the GPU if it is suspected or unhealthy and the last test is long ago.

        Returns whether the GPU recovered.
        """
        if problem := await asyncio.to_thread(self._problem, gpu):
            return self._mark(gpu, "; ".join(filter(None, (self._of_xid(gpu), problem))))
        struck = self._struck.get(gpu)
        if struck is not None and struck.effect is Effect.RESET and not self._tells_recovery(gpu):
            return self._mark(gpu, f"{struck}: reset the GPU, then start the appliance again")
        now = asyncio.get_running_loop().time()
        reason = self._suspected.get(gpu) or self._gpus[gpu].unhealthy
        if not reason or self._test is None or now < self._tested.get(gpu, -inf) + self._retest_seconds:
            return False
        self._tested[gpu] = now
        self._suspected.pop(gpu, None)
        problem = (await self._test(gpu)).problem
        if self._struck.get(gpu) is not struck:
            return False  # another XID came during the test
        if not problem:
            self._struck.pop(gpu, None)
        return self._mark(gpu, "; ".join(filter(None, (self._of_xid(gpu), problem))))

    def _of_xid(self, gpu: int) -> str:
        return str(self._struck.get(gpu, ""))

    def _mark(self, gpu: int, problem: str) -> bool:
        before, self._gpus[gpu].unhealthy = self._gpus[gpu].unhealthy, problem
        if problem and problem != before:
            _log.error("gpu %d is unhealthy and gets no new lease: %s", gpu, problem)
        elif before and not problem:
            _log.info("gpu %d is healthy again", gpu)
        return bool(before) and not problem
