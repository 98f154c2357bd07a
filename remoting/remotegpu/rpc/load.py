"""Computes the used parts of the time of GPUs from two reports of an appliance. Pure."""

from collections.abc import Mapping

from remotegpu.rpc import pb

# The used part of a GPU's time, by lease and GPU.
Busy = Mapping[tuple[str, str], float]


def busy(before: pb.InventoryReply, after: pb.InventoryReply, seconds: float) -> Busy:
    """Returns the parts used in the `seconds` between two reports; empty if the appliance does not divide time."""
    if after.compute_mode != "turns" or seconds <= 0:
        return {}
    had = _nanoseconds(before)
    return {
        # Not negative: the counter of a lease that moved away and back starts again at 0.
        key: max(0, nanoseconds - had[key]) / 1e9 / seconds
        for key, nanoseconds in _nanoseconds(after).items()
        if key in had
    }


def busy_of(parts: Busy, lease: str = "", gpu: str = "") -> float | None:
    """Sums the parts over all GPUs of a lease, or over all leases on a GPU; None if nothing is known."""
    found = [part for (one, other), part in parts.items() if lease in ("", one) and gpu in ("", other)]
    return sum(found) if found else None


def _nanoseconds(inventory: pb.InventoryReply) -> dict[tuple[str, str], int]:
    return {(lease.lease_id, place.gpu): place.gpu_nanoseconds for lease in inventory.leases for place in lease.places}
