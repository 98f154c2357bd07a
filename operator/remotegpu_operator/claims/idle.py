"""Finds idle claims, which have a share but no session. Warns about them, and deletes them if their pool says so."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from remotegpu.api.claims import GPUClaim, Phase
from remotegpu.api.durations import format_duration
from remotegpu.api.pools import GPUPool, IdleAction, IdleSpec
from remotegpu_operator.cluster.kube import ApiError, Unanswered

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0


class Idle:
    def __init__(
        self,
        claims: Mapping[str, GPUClaim],
        pools: Mapping[str, GPUPool],
        unused: Callable[[GPUClaim], int],
        warn: Callable[[GPUClaim, str], None],
        release: Callable[[GPUClaim, str], Awaitable[None]],
    ) -> None:
        """`claims` by uid and `pools` by name are live mappings.

        `unused` returns for how many seconds a claim has had no session. `warn` reports a message about a claim, and
        `release` deletes a claim.
        """
        self._claims = claims
        self._pools = pools
        self._unused = unused
        self._warn = warn
        self._release = release
        # The time of each claim's warning, by a monotonic clock. After a change of the leader the grace period begins
        # again with a new warning.
        self._warned: dict[str, float] = {}

    async def follow(self) -> None:
        while True:
            for claim in list(self._claims.values()):
                policy = self._policy(claim)
                if policy is None or (unused := self._unused(claim)) < policy.after:
                    self._warned.pop(claim.uid, None)
                else:
                    await self._act(claim, policy, unused)
            self._warned = {uid: since for uid, since in self._warned.items() if uid in self._claims}
            await asyncio.sleep(_LOOK_SECONDS)

    def _policy(self, claim: GPUClaim) -> IdleSpec | None:
        pool = self._pools.get(claim.spec.pool)
        return pool.spec.idle if pool is not None and claim.status.phase is Phase.ALLOCATED else None

    async def _act(self, claim: GPUClaim, policy: IdleSpec, unused: int) -> None:
        now, length = time.monotonic(), format_duration(unused)
        if (warned := self._warned.get(claim.uid)) is None:
            self._warned[claim.uid] = now
            self._warn(claim, _warning(policy, length))
        elif policy.action is IdleAction.RELEASE and now - warned >= policy.grace:
            try:
                await self._release(claim, f"no program has had a session for {length}: the claim is deleted")
            except (ApiError, *Unanswered) as error:
                _log.error("claim %s is not released, and tried again: %s", claim.key, error)


def _warning(policy: IdleSpec, length: str) -> str:
    said = f"it has a share, and no program has had a session for {length}"
    if policy.action is IdleAction.WARN:
        return f"{said}: delete it, or the pod that holds it, if nobody needs it"
    return f"{said}: it is deleted in {format_duration(policy.grace)} unless one starts"
