"""Chooses how many GPUs to take from which of several appliances. Pure."""

from collections.abc import Sequence

from remotegpu.api.quantities import Ask
from remotegpu.rpc import pb


def spread(inventories: Sequence[pb.InventoryReply], ask: Ask) -> list[int] | None:
    """Returns a number for each appliance: evenly spread, more where more is free; None if it does not fit now."""
    fitting = [0 if inventory.draining else sum(_fits(ask, gpu) for gpu in inventory.gpus) for inventory in inventories]
    if sum(fitting) < ask.count:
        return None
    counts = [0] * len(inventories)
    for _ in range(ask.count):
        open_ones = [i for i, left in enumerate(fitting) if left > counts[i]]
        chosen = min(open_ones, key=lambda i: (counts[i], -(fitting[i] - counts[i])))
        counts[chosen] += 1
    return counts


def possible(inventories: Sequence[pb.InventoryReply], ask: Ask) -> bool:
    """Whether it would fit if nothing were leased."""
    gpus = [gpu for inventory in inventories for gpu in inventory.gpus if gpu.healthy]
    return sum(0 < ask.bytes_of(gpu.shareable_bytes) <= gpu.shareable_bytes for gpu in gpus) >= ask.count


def _fits(ask: Ask, gpu: pb.Gpu) -> bool:
    return gpu.healthy and 0 < ask.bytes_of(gpu.shareable_bytes) <= gpu.shareable_bytes - gpu.leased_bytes
