"""Decides which claims are to be suspended and why, and stores the appliances' reports about these claims."""

import asyncio
import datetime
from collections.abc import Callable, Mapping
from typing import Final

from remotegpu.api.claims import ClaimStatus, GPUClaim
from remotegpu.api.pools import GPUPool
from remotegpu_operator.allocation import Allocator, request_of
from remotegpu_operator.appliances.inventory import Suspended
from remotegpu_operator.builders import claims as statuses
from remotegpu_operator.builders import suspension
from remotegpu_operator.builders.suspension import Why

_LOOK_SECONDS: Final = 1.0


class Suspensions:
    def __init__(
        self,
        claims: Mapping[str, GPUClaim],
        pools: Mapping[str, GPUPool],
        priorities: Mapping[str, int],
        allocator: Allocator,
        look: Callable[[str], None],
    ) -> None:
        """`claims` by uid, `pools` by name, `priorities` by PriorityClass: live mappings. `look` queues a claim."""
        self._claims = claims
        self._pools = pools
        self._priorities = priorities
        self._allocator = allocator
        self._look = look
        # By pool: the uids of claims to suspend, each with the uid of the claim that gets the share.
        self._victims: dict[str, dict[str, str]] = {}
        # The last reports, by appliance and claim.
        self._told: dict[str, Mapping[str, Suspended]] = {}

    def told(self, appliance: str, claims: Mapping[str, Suspended]) -> None:
        """Stores an appliance's report on claims that are being suspended or are suspended."""
        old = self._told.get(appliance, {})
        if claims != old:
            self._told[appliance] = claims
            for uid in old.keys() | claims.keys():
                self._look(uid)

    def why(self, claim: GPUClaim) -> Why | None:
        """Returns why the claim is to be suspended; None if it is not to be suspended."""
        for_whom = self._claims.get(self._victims.get(claim.spec.pool, {}).get(claim.uid, ""))
        priority = request_of(claim, self._priorities).priority
        pool = self._pools.get(claim.spec.pool)
        return suspension.why(claim, priority, pool, for_whom, datetime.datetime.now(datetime.UTC))

    def status_of_one_that_ends(self, claim: GPUClaim, why: Why, stamp: str) -> ClaimStatus:
        """Returns the next status of a claim that is to be suspended: Suspended once all its appliances report so."""
        names = statuses.appliances_of(claim)
        told = [self._told.get(name, {}).get(claim.uid, Suspended()) for name in names]
        if problem := next((each.problem for each in told if each.problem), ""):
            return statuses.suspending(claim, why, problem, stamp)
        kept = {(name, gpu): size for name, each in zip(names, told, strict=True) for gpu, size in each.kept.items()}
        if all((each.appliance, each.gpu) in kept for each in claim.status.allocations):
            return statuses.suspended(claim, why, kept, stamp)
        return statuses.suspending(claim, why, "", stamp)

    def choose_victims(self) -> None:
        """Chooses again which claims to suspend for waiting claims of higher priority."""
        for name, pool in self._pools.items():
            before = self._victims.get(name, {})
            chosen = self._allocator.victims(name, before) if pool.spec.suspend_for_priority else {}
            if chosen != before:
                self._victims[name] = chosen
                for uid in before.keys() ^ chosen.keys():
                    self._look(uid)

    async def follow_schedules(self, changed: Callable[[GPUClaim], None]) -> None:
        """Calls `changed` with each suspendable claim of a pool when the current windows of its schedules change.

        Never returns.
        """
        seen: dict[str, tuple[str, ...]] = {}
        while True:
            now = datetime.datetime.now(datetime.UTC)
            windows = {name: suspension.windows(pool, now) for name, pool in self._pools.items() if pool.spec.schedules}
            others = {name for name in seen.keys() | windows.keys() if seen.get(name) != windows.get(name)}
            seen = windows
            for claim in list(self._claims.values()) if others else ():
                if claim.spec.pool in others and claim.spec.suspendable:
                    changed(claim)
            await asyncio.sleep(_LOOK_SECONDS)
