"""Resizes the shares of claims while their programs run.

The operator writes the new size into the claim's status. The appliances resize the leases and report their sizes.
"""

from collections.abc import Callable, Mapping

from remotegpu.api.claims import ClaimStatus, GPUClaim
from remotegpu_operator.allocation import Allocator, request_of
from remotegpu_operator.builders import resizes
from remotegpu_operator.claims.attempts import Attempts

Sizes = Mapping[str, Mapping[str, int]]


class Resizes:
    def __init__(self, allocator: Allocator, priorities: Mapping[str, int], look: Callable[[str], None]):
        """`priorities` has the value of each PriorityClass. `look` queues a claim for reconciliation."""
        self._allocator = allocator
        self._priorities = priorities
        self._look = look
        # By appliance: the reported sizes of leases by claim and GPU, and the problem with each claim's resize.
        self._told: dict[str, tuple[Sizes, Mapping[str, str]]] = {}
        self._attempts = Attempts(look)

    def told(self, appliance: str, sizes: Sizes, problems: Mapping[str, str]) -> None:
        old_sizes, old_problems = self._told.get(appliance, ({}, {}))
        self._told[appliance] = sizes, problems
        for uid in sizes.keys() | problems.keys():
            if (sizes.get(uid), problems.get(uid)) != (old_sizes.get(uid), old_problems.get(uid)):
                self._look(uid)

    def forget(self, uid: str) -> None:
        self._attempts.forget(uid)

    def next(self, claim: GPUClaim, now: str) -> ClaimStatus:
        """Begins, continues or ends the resize of a claim that has a share and is not moving.

        Holds the GPUs of a new resize in the allocator. Returns the next status of the claim.
        """
        if claim.status.resize:
            return self._follow(claim, now)
        if self._attempts.too_early(claim):
            return claim.status
        request = request_of(claim, self._priorities)
        wanted = self._allocator.resized(request)
        if isinstance(wanted, str):
            return self._not_resized(claim, wanted, now)
        if wanted == claim.status.allocations:
            self.forget(claim.uid)
            return resizes.stays(claim, now)
        status = resizes.resizing(claim, wanted, now)
        self._allocator.hold(request, status.held)
        return status

    def _follow(self, claim: GPUClaim, now: str) -> ClaimStatus:
        told = [(each, *self._told.get(each.appliance, ({}, {}))) for each in claim.status.resize]
        if all(sizes.get(claim.uid, {}).get(each.gpu) == each.memory for each, sizes, _ in told):
            return resizes.resized(claim, now)
        if problem := next(filter(None, (problems.get(claim.uid) for _, _, problems in told)), None):
            return self._not_resized(claim, problem, now)
        return claim.status

    def _not_resized(self, claim: GPUClaim, why: str, now: str) -> ClaimStatus:
        self._attempts.failed(claim)
        return resizes.not_resized(claim, why, now)
