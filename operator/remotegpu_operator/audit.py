"""The audit log: a line of JSON on standard output for each decision about a share or an appliance, with its reason."""

import datetime
import json
import logging
import sys
from collections.abc import Callable
from typing import Any, Final

from remotegpu.api.claims import Allocation, ClaimStatus, GPUClaim, Phase, Reason

_log: Final = logging.getLogger("remotegpu.audit")


def set_up() -> None:
    """Sends audit lines to standard output. The program's log goes to standard error."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False


def decided(claim: GPUClaim, status: ClaimStatus, user: Callable[[GPUClaim], str]) -> None:
    """Logs the change from the claim's status to the stored `status`, if the change is about the share.

    `user` returns the claim's user.
    """
    if (event := event_of(claim.status, status)) is not None:
        had = claim.status.allocations
        before = {"before": _places(had)} if had and had != status.allocations else {}
        _write(
            event, str(status.reason), status.message, **_who(claim, user), gpus=_places(status.allocations), **before
        )


def released(claim: GPUClaim, user: Callable[[GPUClaim], str], reason: str, why: str) -> None:
    if claim.status.allocations:
        _write("released", reason, why, **_who(claim, user), gpus=[], before=_places(claim.status.allocations))


def idle(claim: GPUClaim, why: str, user: Callable[[GPUClaim], str]) -> None:
    _write("idle", "Idle", why, **_who(claim, user), gpus=_places(claim.status.allocations))


def drained(appliance: str, node: str, pool: str, message: str) -> None:
    _write("draining", "ApplianceDraining", message, appliance=appliance, node=node, pool=pool)


def event_of(before: ClaimStatus, after: ClaimStatus) -> str | None:
    """Returns the audit event for a change of status; None if the change is not about the share."""
    if after.phase is Phase.ALLOCATED and before.phase is not Phase.ALLOCATED:
        return {Phase.SUSPENDED: "resumed", Phase.LOST: "back"}.get(before.phase, "allocated")
    if after.phase is not before.phase:
        gave_back = after.phase is Phase.PENDING and bool(before.allocations)
        return "displaced" if gave_back else _PHASES[after.phase]
    if _appliances(after) != _appliances(before):
        return "moved"
    if after.phase is Phase.ALLOCATED and after.allocations != before.allocations:
        return "resized"
    if after.reason is before.reason or after.reason is Reason.ALLOCATED:
        return None
    return _PHASES[Phase.PENDING] if after.phase is Phase.PENDING else _REASONS.get(after.reason)


_PHASES: Final = {
    Phase.PENDING: "refused",
    Phase.LOST: "lost",
    Phase.SUSPENDED: "suspended",
    Phase.EXPIRED: "expired",
}
_REASONS: Final = {
    Reason.SUSPENDING: "suspending",
    Reason.NOT_SUSPENDED: "not suspended",
    Reason.MOVING: "moving",
    Reason.NOT_MOVED: "not moved",
    Reason.RESIZING: "resizing",
    Reason.NOT_RESIZED: "not resized",
    Reason.GPU_UNHEALTHY: "unhealthy",
}


def _appliances(status: ClaimStatus) -> list[str]:
    return [each.appliance for each in status.allocations]


def _places(allocations: tuple[Allocation, ...]) -> list[dict[str, Any]]:
    return [each.to_object() for each in allocations]


def _who(claim: GPUClaim, user: Callable[[GPUClaim], str]) -> dict[str, Any]:
    pod = claim.spec.pod.name if claim.spec.pod else ""
    named = {"namespace": claim.namespace, "claim": claim.name, "uid": claim.uid, "pod": pod, "user": user(claim)}
    return named | {"pool": claim.spec.pool, "asks": str(claim.spec.ask)}


def _write(event: str, reason: str, message: str, **about: Any) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    _log.info("%s", json.dumps({"audit": event, "time": now, "reason": reason, "why": message, **about}))
