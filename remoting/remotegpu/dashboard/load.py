"""Sessions, used memory and load of GPUs and claims, from the reports of appliances. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from remotegpu.dashboard.state import Json, Scope
from remotegpu.rpc import pb
from remotegpu.rpc.load import Busy, busy, busy_of

# The longest time between two readings for a mean load; a mean over a longer time is useless.
_LATELY_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Reading:
    inventory: pb.InventoryReply
    at: float
    busy: Busy = field(default_factory=dict)
    problem: str = ""  # the reason why there is no newer reading

    @classmethod
    def after(cls, before: "Reading | None", inventory: pb.InventoryReply, now: float) -> "Reading":
        """Returns a reading with the load since the reading `before`, if that is recent."""
        if before is None or now - before.at > _LATELY_SECONDS:
            return cls(inventory, now)
        return cls(inventory, now, busy(before.inventory, inventory, now - before.at))


def load_of(readings: Mapping[str, Reading], scope: Scope, now: float) -> Json:
    """Returns the load of GPUs, if the reader may list pools, and of the claims that the reader may list.

    `busy` in the result is a part of one GPU's time; None if time is not divided, or if the part is still unknown.
    """
    gpus: dict[str, Json] = {}
    claims: dict[str, Json] = {}
    for name, reading in readings.items():
        age = round(now - reading.at)
        leases = reading.inventory.leases
        for lease in leases:
            if lease.claim and scope.shows(lease.claim.split("/")[0]):
                # A claim with GPUs of several appliances has a lease on each.
                others = claims.get(lease.claim, {"sessions": 0, "used": 0, "busy": None, "age": 0})
                part = busy_of(reading.busy, lease=lease.lease_id)
                claims[lease.claim] = {
                    "sessions": others["sessions"] + lease.sessions,
                    "used": others["used"] + sum(place.used_bytes for place in lease.places),
                    "busy": others["busy"] if part is None else (others["busy"] or 0) + part,
                    "age": max(others["age"], age),
                }
        if scope.pools:
            for gpu in reading.inventory.gpus:
                there = (each for each in leases if any(place.gpu == gpu.uuid for place in each.places))
                gpus[f"{name} {gpu.uuid}"] = {
                    "sessions": sum(each.sessions for each in there),
                    "used": gpu.used_bytes,
                    "busy": busy_of(reading.busy, gpu=gpu.uuid),
                    "age": age,
                }
    problems = {name: each.problem for name, each in readings.items() if each.problem} if scope.pools else {}
    return {"gpus": gpus, "claims": claims, "problems": problems}
