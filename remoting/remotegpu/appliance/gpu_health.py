"""Which GPUs take new leases. A worker's complaint is only a reason to look: its tenant may have made it up."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf

from remotegpu.appliance.allocation import Capacity
from remotegpu.appliance.hardware import SelfTest

_log = logging.getLogger(__name__)

WATCH_SECONDS = 5.0
# An unhealthy GPU is tested again this often, and a suspected one not more often.
RETEST_SECONDS = 30.0


class GpuHealth:
    """Asks the driver regularly, and tests GPUs that are suspected or were unhealthy."""

    def __init__(
        self,
        gpus: Sequence[Capacity],
        *,
        problem: Callable[[int], str],
        test: Callable[[int], Awaitable[SelfTest]] | None,
        retest_seconds: float = RETEST_SECONDS,
    ) -> None:
        self._gpus = gpus
        self._problem = problem
        self._test = test
        self._retest_seconds = retest_seconds
        self._suspected: dict[int, str] = {}
        self._tested: dict[int, float] = {}

    def suspect(self, gpu: int, message: str) -> None:
        """A session reported an error that a healthy GPU does not give."""
        _log.warning("gpu %d is suspected: %s", gpu, message)
        self._suspected[gpu] = message

    async def watch(self, on_recovery: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for gpu in range(len(self._gpus)):
                if await self.look_at(gpu):
                    on_recovery()

    async def look_at(self, gpu: int) -> bool:
        """Ask the driver; test if there is a reason to and the last test is long ago. Whether the GPU recovered."""
        if problem := await asyncio.to_thread(self._problem, gpu):
            return self._mark(gpu, problem)
        now = asyncio.get_running_loop().time()
        reason = self._suspected.get(gpu) or self._gpus[gpu].unhealthy
        if not reason or self._test is None or now < self._tested.get(gpu, -inf) + self._retest_seconds:
            return False
        self._tested[gpu] = now
        self._suspected.pop(gpu, None)
        return self._mark(gpu, (await self._test(gpu)).problem)

    def _mark(self, gpu: int, problem: str) -> bool:
        before, self._gpus[gpu].unhealthy = self._gpus[gpu].unhealthy, problem
        if problem and problem != before:
            _log.error("gpu %d is unhealthy and gets no new lease: %s", gpu, problem)
        elif before and not problem:
            _log.info("gpu %d is healthy again", gpu)
        return bool(before) and not problem
