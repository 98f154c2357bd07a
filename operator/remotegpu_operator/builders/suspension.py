"""Decides whether a claim is to be suspended, and why. All functions are pure."""

import datetime
from dataclasses import dataclass

from remotegpu.api.claims import GPUClaim, Reason
from remotegpu.api.pools import GPUPool


@dataclass(frozen=True, slots=True)
class Why:
    reason: Reason
    message: str

    @property
    def lasts(self) -> bool:
        """Whether the suspended claim waits until this reason ends before it asks for its share again.

        A claim that was suspended for a claim of higher priority asks again at once.
        """
        return self.reason is not Reason.FOR_PRIORITY


def why(
    claim: GPUClaim, priority: int, pool: GPUPool | None, for_whom: GPUClaim | None, now: datetime.datetime
) -> Why | None:
    """Returns why the claim is to be suspended; None if it is not to be suspended.

    `for_whom` is the claim of higher priority for which the allocator chose this claim as a victim, or None.
    """
    if claim.spec.suspend:
        return Why(Reason.BY_USER, "spec.suspend is true")
    if not claim.spec.suspendable or pool is None:
        return None
    for schedule in pool.spec.schedules:
        if schedule.suspends(claim.namespace, claim.labels, priority) and schedule.covers(now):
            until = f"{schedule.end.strftime('%H:%M')} {schedule.time_zone}"
            return Why(Reason.BY_SCHEDULE, f"schedule {schedule.name} of pool {pool.name}, until {until}")
    if for_whom is not None and pool.spec.suspend_for_priority:
        return Why(Reason.FOR_PRIORITY, f"claim {for_whom.key} has a higher priority and gets its share")
    return None


def windows(pool: GPUPool, now: datetime.datetime) -> tuple[str, ...]:
    """Returns the names of the pool's schedules whose window is open now."""
    return tuple(schedule.name for schedule in pool.spec.schedules if schedule.covers(now))
