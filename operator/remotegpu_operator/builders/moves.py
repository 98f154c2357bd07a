"""Pure functions that decide which allocations of a claim move, and build the claim's status during a move."""

from collections.abc import Mapping
from dataclasses import replace

from remotegpu.api.claims import Allocation, ClaimStatus, GPUClaim, Mode, Move, Phase, Reason
from remotegpu.api.pools import AppliancePhase, ApplianceStatus
from remotegpu_operator.builders import claims as statuses


def source(claim: GPUClaim, appliances: Mapping[str, ApplianceStatus]) -> str:
    """Returns the name of the appliance that the claim must leave; empty if the claim stays.

    A claim with `spec.appliance` moves to that appliance. A movable claim leaves a draining appliance.
    """
    names = statuses.appliances_of(claim)
    if claim.spec.appliance:
        return next((name for name in names if name != claim.spec.appliance), "")
    if not claim.spec.movable:
        return ""
    closed = (name for name in names if name in appliances and appliances[name].phase is AppliancePhase.DRAINING)
    return next(closed, "")


def refusal(claim: GPUClaim) -> str:
    """Returns why the claim cannot move to any appliance; empty if it can."""
    if claim.spec.mode is Mode.OFFLOAD:
        return "Offload: a claim of mode offload does not move; it goes when its pods end"
    if claim.spec.appliance and len(statuses.appliances_of(claim)) > 1:
        return "SeveralAppliances: its GPUs are on several appliances, and do not move to one: leave out spec.appliance"
    return ""


def moving(claim: GPUClaim, source: str, to: tuple[Allocation, ...], now: str, why: str = "") -> ClaimStatus:
    """Returns the status of a claim during a move. The claim keeps its share at `source` until its programs moved."""
    status = replace(claim.status, move=Move(source, to))
    message = f"its programs move from {source} to {_place(to)}" + (f": {why}" if why else "")
    return statuses.with_reason(claim, status, status.phase, Reason.MOVING, message, now)


def moved(claim: GPUClaim, move: Move, appliances: Mapping[str, ApplianceStatus], now: str) -> ClaimStatus:
    """Returns the status of a claim after a move.

    A suspended claim becomes Allocated at the target. The next reconciliation suspends it again if needed.
    """
    to = iter(move.to)
    allocations = tuple(next(to) if each.appliance == move.source else each for each in claim.status.allocations)
    endpoints = statuses.endpoints(allocations, appliances)
    status = replace(claim.status, allocations=allocations, endpoints=endpoints, move=None, share_since=now)
    message = f"its programs have moved from {move.source} to {_place(move.to)}"
    return statuses.with_reason(claim, status, Phase.ALLOCATED, Reason.ALLOCATED, message, now)


def not_moved(claim: GPUClaim, why: str, now: str) -> ClaimStatus:
    """Returns the status of a claim after a failed move, which the operator tries again."""
    status = replace(claim.status, move=None)
    message = f"it stays on {', '.join(statuses.appliances_of(claim))}: {why}"[: statuses.MOST_WHY]
    if (status.reason, status.message) == (Reason.NOT_MOVED, message):
        return status
    return statuses.with_reason(claim, status, status.phase, Reason.NOT_MOVED, message, now)


def stays(claim: GPUClaim, now: str) -> ClaimStatus:
    """Returns the status of a claim that no longer has to move."""
    if claim.status.reason is not Reason.NOT_MOVED:
        return claim.status
    phase, message = claim.status.phase, "it is not to be moved any more"
    reason = Reason.WAITING_FOR_CAPACITY if phase is Phase.SUSPENDED else Reason.ALLOCATED
    return statuses.with_reason(claim, claim.status, phase, reason, message, now)


def _place(to: tuple[Allocation, ...]) -> str:
    return f"{to[0].appliance} on node {to[0].node}"
