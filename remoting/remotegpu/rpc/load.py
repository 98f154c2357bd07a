"""How much of GPUs' time was used, from what an appliance told at two times. Pure."""

from remotegpu.rpc import pb


def busy(before: pb.InventoryReply, after: pb.InventoryReply, seconds: float) -> dict[tuple[str, str], float]:
    """By lease and GPU, the part of the seconds between; empty where the appliance does not divide time."""
    if after.compute_mode != "turns" or seconds <= 0:
        return {}
    had = _nanoseconds(before)
    return {
        # A lease that comes back from another appliance begins anew.
        key: max(0, nanoseconds - had[key]) / 1e9 / seconds
        for key, nanoseconds in _nanoseconds(after).items()
        if key in had
    }


def _nanoseconds(inventory: pb.InventoryReply) -> dict[tuple[str, str], int]:
    return {(lease.lease_id, place.gpu): place.gpu_nanoseconds for lease in inventory.leases for place in lease.places}
