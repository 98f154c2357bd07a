"""Retry times after a failed step of a claim: after 15 seconds, or at once when the claim's spec has changed."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from remotegpu.api.claims import GPUClaim

_AGAIN_SECONDS: Final = 15.0


class Attempts:
    def __init__(self, look: Callable[[str], None]) -> None:
        """`look` queues a claim for reconciliation."""
        self._look = look
        # By claim: the generation that failed, and the earliest time of the next attempt.
        self._failed: dict[str, tuple[int, float]] = {}

    def failed(self, claim: GPUClaim) -> None:
        self._failed[claim.uid] = claim.generation, time.monotonic() + _AGAIN_SECONDS
        asyncio.get_running_loop().call_later(_AGAIN_SECONDS + 0.1, self._look, claim.uid)

    def too_early(self, claim: GPUClaim) -> bool:
        generation, until = self._failed.get(claim.uid, (0, 0.0))
        return generation == claim.generation and time.monotonic() < until

    def forget(self, uid: str) -> None:
        self._failed.pop(uid, None)
