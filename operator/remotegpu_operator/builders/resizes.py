"""Builds a claim's status while its share grows or shrinks. All functions are pure."""

from dataclasses import replace

from remotegpu.api.claims import Allocation, ClaimStatus, GPUClaim, Phase, Reason
from remotegpu.api.quantities import format_bytes
from remotegpu_operator.builders.claims import MOST_WHY, with_reason


def resizing(claim: GPUClaim, to: tuple[Allocation, ...], now: str) -> ClaimStatus:
    """Returns the status while the appliances change the leases. Until then the larger of both sizes is allocated."""
    message = f"its appliance changes its share from {_sizes(claim.status.allocations)} to {_sizes(to)}"
    return with_reason(claim, replace(claim.status, resize=to), Phase.ALLOCATED, Reason.RESIZING, message, now)


def resized(claim: GPUClaim, now: str) -> ClaimStatus:
    to = claim.status.resize
    status = replace(claim.status, allocations=to, resize=(), share_since=now)
    message = f"its share is {_sizes(to)} now, and was {_sizes(claim.status.allocations)}"
    return with_reason(claim, status, Phase.ALLOCATED, Reason.ALLOCATED, message, now)


def not_resized(claim: GPUClaim, why: str, now: str) -> ClaimStatus:
    """Returns the status of a claim after a failed resize, which the operator tries again."""
    status = replace(claim.status, resize=())
    message = f"its share stays at {_sizes(status.allocations)}: {why}"[:MOST_WHY]
    if (status.reason, status.message) == (Reason.NOT_RESIZED, message):
        return status
    return with_reason(claim, status, Phase.ALLOCATED, Reason.NOT_RESIZED, message, now)


def stays(claim: GPUClaim, now: str) -> ClaimStatus:
    """Returns the status of a claim that already has the size that it asks for."""
    if claim.status.reason is not Reason.NOT_RESIZED:
        return claim.status
    message = f"it asks for the {_sizes(claim.status.allocations)} that it has"
    return with_reason(claim, claim.status, Phase.ALLOCATED, Reason.ALLOCATED, message, now)


def _sizes(allocations: tuple[Allocation, ...]) -> str:
    return " and ".join(dict.fromkeys(format_bytes(each.memory) for each in allocations))
