"""Builds a claim's status after a decision about its share, a change of an appliance, or the end of its start deadline.

All functions are pure: they take the claim and return its new status. `now` is the time as in Kubernetes objects.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from remotegpu.api.claims import Allocation, ClaimStatus, Endpoint, GPUClaim, Phase, PodReference, Reason
from remotegpu.api.conditions import Condition, with_condition
from remotegpu.api.kubernetes import server_name
from remotegpu.api.pools import AppliancePhase, ApplianceStatus
from remotegpu.api.quantities import format_bytes
from remotegpu_operator.allocation import Placed, Waiting
from remotegpu_operator.builders.suspension import Why

HOLDING: Final = frozenset({Phase.ALLOCATED, Phase.LOST, Phase.SUSPENDED})


def placed(claim: GPUClaim, decision: Placed, appliances: Mapping[str, ApplianceStatus], now: str) -> ClaimStatus:
    share = format_bytes(min(each.memory for each in decision.allocations))
    whole = "" if len(decision.allocations) == 1 else f" of each of {len(decision.allocations)} GPUs"
    status = replace(
        claim.status,
        allocations=decision.allocations,
        endpoints=endpoints(decision.allocations, appliances),
        share_since=now,
    )
    on = ", ".join(dict.fromkeys(f"{each.appliance} on node {each.node}" for each in decision.allocations))
    return with_reason(claim, status, Phase.ALLOCATED, Reason.ALLOCATED, f"{share}{whole}: {on}", now)


def waiting(claim: GPUClaim, decision: Waiting, now: str) -> ClaimStatus:
    return with_reason(claim, _empty(claim.status), Phase.PENDING, decision.reason, decision.message, now)


def suspended(claim: GPUClaim, why: Why, kept: Mapping[tuple[str, str], int], now: str) -> ClaimStatus:
    """Returns the status of a suspended claim. `kept`: the bytes that the driver still has, by appliance and GPU."""
    allocations = tuple(
        replace(each, memory=kept[each.appliance, each.gpu], milli=0) for each in claim.status.allocations
    )
    return stays_suspended(claim, replace(claim.status, allocations=allocations), why, now)


def stays_suspended(claim: GPUClaim, status: ClaimStatus, why: Why, now: str) -> ClaimStatus:
    message = f"its programs wait, and others have the share: {why.message}"
    if (status.phase, status.reason, status.message) == (Phase.SUSPENDED, why.reason, message):
        return status
    return with_reason(claim, status, Phase.SUSPENDED, why.reason, message, now)


def suspending(claim: GPUClaim, why: Why, problem: str, now: str) -> ClaimStatus:
    """Returns the status of a claim that is to be suspended and still has its share.

    `problem` is why the suspension failed; empty while it is in progress.
    """
    reason = Reason.NOT_SUSPENDED if problem else Reason.SUSPENDING
    message = problem[:MOST_WHY] or f"its kernels end and its memory is copied, then others have it: {why.message}"
    if (claim.status.reason, claim.status.message) == (reason, message):
        return claim.status
    return with_reason(claim, claim.status, Phase.ALLOCATED, reason, message, now)


def resuming(claim: GPUClaim, decision: Waiting, now: str) -> ClaimStatus:
    """Returns the status of a suspended claim that waits for its share again.

    The reason stays FOR_PRIORITY if the claim was suspended for a claim of higher priority.
    """
    gave_way = claim.status.reason is Reason.FOR_PRIORITY
    reason = claim.status.reason if gave_way else decision.reason
    return with_reason(claim, claim.status, Phase.SUSPENDED, reason, decision.message, now)


def displaced(claim: GPUClaim, why: str, now: str) -> ClaimStatus:
    """Returns the status of a claim that has lost its GPUs because of `why` and waits for other GPUs."""
    message = f"{why}: it waits for others"
    return with_reason(claim, _empty(claim.status), Phase.PENDING, Reason.WAITING_FOR_CAPACITY, message, now)


def unhealthy(claim: GPUClaim, appliances: Mapping[str, ApplianceStatus]) -> str:
    """Returns a message about the claim's failed GPUs and the reasons; empty if all are healthy."""
    allocations = {(each.appliance, each.gpu): each.node for each in claim.status.allocations}
    failed = [
        f"{gpu.uuid} of {name} on node {node} is not healthy ({gpu.message})"
        for (name, uuid), node in allocations.items()
        for gpu in (appliances[name].gpus if name in appliances else ())
        if gpu.uuid == uuid and not gpu.healthy
    ]
    return ", ".join(failed)[:MOST_WHY]


def expired(claim: GPUClaim, deadline: int, now: str) -> ClaimStatus:
    message = (
        f"the pod did not start within {deadline} s of getting its share: find out why with `kubectl describe pod "
        f"{claim.spec.pod.name if claim.spec.pod else ''}`; the share comes back when the pod starts"
    )
    return with_reason(claim, _empty(claim.status), Phase.EXPIRED, Reason.START_DEADLINE_EXCEEDED, message, now)


def observed(
    claim: GPUClaim, appliances: Mapping[str, ApplianceStatus], now: str, *, suspending: bool = False
) -> ClaimStatus:
    """Returns the status that follows from the appliances: Lost while one does not answer, else Allocated.

    With a failed GPU the claim stays Allocated but is not Ready: after some failures running programs can continue.
    `suspending` is true if the claim is to be suspended.
    """
    status = claim.status
    away = [each for each in status.allocations if not serves(appliances.get(each.appliance), each.gpu)]
    if away:
        names = ", ".join(dict.fromkeys(f"{each.appliance} on node {each.node}" for each in away))
        message = f"{names} does not answer: programs there have ended, and the share is kept until it is back"
        if status.phase is Phase.LOST:
            return status
        return with_reason(claim, status, Phase.LOST, Reason.APPLIANCE_LOST, message, now)
    here = replace(status, endpoints=endpoints(status.allocations, appliances))
    if why := unhealthy(claim, appliances):
        message = f"{why}: no program can start on it; make the pod anew for another GPU, or wait until it is well"
        return with_reason(claim, here, Phase.ALLOCATED, Reason.GPU_UNHEALTHY, message, now)
    if well := _well_again(claim, suspending):
        return with_reason(claim, here, Phase.ALLOCATED, Reason.ALLOCATED, well, now)
    return status if here == status else here


def _well_again(claim: GPUClaim, suspending: bool) -> str:
    """Returns a message about the problem that has ended; empty if there was no problem."""
    if claim.status.phase is Phase.LOST:
        return "the appliance is back with the same GPU"
    if claim.status.reason is Reason.GPU_UNHEALTHY:
        return "the GPU is healthy again"
    if claim.status.reason is Reason.NOT_SEEN:
        return "it has its share"  # a later release wrote a reason that this release does not know
    was = claim.status.reason in (Reason.SUSPENDING, Reason.NOT_SUSPENDED)
    return "it is not to be suspended any more" if was and not suspending else ""


def held_back(claim: GPUClaim, status: ClaimStatus, why: str, now: str) -> ClaimStatus:
    """Sets the reason NO_DEVICE_PLUGIN while `why` holds back the claim's pod, and clears it when `why` is empty."""
    if status.phase is not Phase.ALLOCATED:
        return status
    if why and status.reason is not Reason.NO_DEVICE_PLUGIN:
        return with_reason(claim, status, Phase.ALLOCATED, Reason.NO_DEVICE_PLUGIN, why, now)
    if not why and status.reason is Reason.NO_DEVICE_PLUGIN:
        back = "the nodes that the pod may land on have the device plugin"
        return with_reason(claim, status, Phase.ALLOCATED, Reason.ALLOCATED, back, now)
    return status


def gone_for_good(claim: GPUClaim, appliances: Mapping[str, ApplianceStatus]) -> bool:
    """Whether an appliance of the claim no longer belongs to a pool, or serves again without the claim's GPU."""
    for each in claim.status.allocations:
        appliance = appliances.get(each.appliance)
        if appliance is None:
            return True
        if appliance.phase in _SERVING and all(gpu.uuid != each.gpu for gpu in appliance.gpus):
            return True
    return False


def with_consumers(status: ClaimStatus, pods: Sequence[PodReference]) -> ClaimStatus:
    """Returns the status with `pods` as consumers, in the order in which they were added; none without a share."""
    wanted = list(pods) if status.phase in HOLDING else []
    kept = [pod for pod in status.consumers if pod in wanted]
    consumers = tuple(kept + [pod for pod in wanted if pod not in kept])
    return status if consumers == status.consumers else replace(status, consumers=consumers)


def allocated_since(claim: GPUClaim) -> datetime.datetime | None:
    """Returns the time at which the claim got its present share; None if it has none."""
    for condition in claim.status.conditions:
        if condition.type == ALLOCATED_CONDITION and condition.status == "True":
            return datetime.datetime.fromisoformat(condition.last_transition_time)
    return None


def endpoints(allocations: Sequence[Allocation], appliances: Mapping[str, ApplianceStatus]) -> tuple[Endpoint, ...]:
    """Returns one endpoint for each appliance, in the order of the allocations."""
    names = dict.fromkeys(each.appliance for each in allocations)
    return tuple(Endpoint(name, appliances[name].address, server_name(name)) for name in names if name in appliances)


def appliances_of(claim: GPUClaim) -> list[str]:
    """Returns the names of the claim's appliances without duplicates, in the order of the allocations."""
    return list(dict.fromkeys(each.appliance for each in claim.status.allocations))


def serves(appliance: ApplianceStatus | None, gpu: str) -> bool:
    return (
        appliance is not None
        and appliance.phase in _SERVING
        and bool(appliance.address)
        and any(each.uuid == gpu for each in appliance.gpus)
    )


# The longest text in a message. The API server accepts messages of 1,024 characters.
MOST_WHY: Final = 900
ALLOCATED_CONDITION: Final = "Allocated"
READY_CONDITION: Final = "Ready"
# The phases in which an appliance serves its claims. A draining appliance accepts no new claims.
_SERVING: Final = frozenset({AppliancePhase.READY, AppliancePhase.DRAINING})


# The reasons with which a claim is Ready. A move only pauses the claim's programs.
_USABLE: Final = frozenset({Reason.ALLOCATED, Reason.MOVING, Reason.NOT_MOVED, Reason.RESIZING, Reason.NOT_RESIZED})


def _empty(status: ClaimStatus) -> ClaimStatus:
    return replace(status, allocations=(), resize=(), move=None, endpoints=(), consumers=(), share_since="")


def with_reason(
    claim: GPUClaim, status: ClaimStatus, phase: Phase, reason: Reason, message: str, now: str
) -> ClaimStatus:
    has_share = phase in HOLDING and phase is not Phase.SUSPENDED
    if phase is not Phase.ALLOCATED:
        status = replace(status, resize=())
    conditions = status.conditions
    for kind, true in ((ALLOCATED_CONDITION, has_share), (READY_CONDITION, has_share and reason in _USABLE)):
        allocated = kind == ALLOCATED_CONDITION and has_share
        conditions = with_condition(
            conditions,
            Condition(
                kind,
                "True" if true else "False",
                Reason.ALLOCATED if allocated else reason,
                message,
                now,
                claim.generation,
            ),
        )
    return replace(
        status,
        phase=phase,
        reason=reason,
        message=message,
        conditions=conditions,
        observed_generation=claim.generation,
    )
