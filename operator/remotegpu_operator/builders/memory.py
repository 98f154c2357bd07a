"""Computes the memory limit of an appliance's container if its pool sets none."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from remotegpu.api.conditions import Condition
from remotegpu.api.modes import Backend
from remotegpu.api.pools import GPUPool
from remotegpu.api.quantities import QuantityError, parse_quantity

Object = dict[str, Any]

# Limits are rounded down to this step. Else a small change of a node's allocatable memory would replace the pod.
_STEP: Final = 256 << 20


def allocatable_bytes(node: Object) -> int | None:
    """Returns the bytes of memory that pods on this node may use; None if the node does not report them."""
    try:
        return int(parse_quantity(((node.get("status") or {}).get("allocatable") or {})["memory"]))
    except (KeyError, TypeError, QuantityError):
        return None


def has_own_limit(pool: GPUPool) -> bool:
    return "memory" in pool.spec.resources.get("limits", {})


def memory_limit(pool: GPUPool, node: Object, gpus: int) -> int | None:
    """Returns three quarters of the node's allocatable memory in bytes, or more if the pool's budgets need more.

    The appliance kills a process that uses too much memory before the container reaches this limit. The rest of the
    node is for other pods. Returns None if the pool sets a limit, or if the node does not report allocatable memory.
    """
    allocatable = allocatable_bytes(node)
    if has_own_limit(pool) or allocatable is None:
        return None
    limits = pool.spec.limits
    software = gpus * pool.spec.software.memory if pool.spec.backend is Backend.SOFTWARE else 0
    budget = max(limits.host_memory_per_claim or 0, limits.host_memory_per_namespace or 0) + software
    wanted = max(allocatable * 3 // 4, budget * 5 // 4)
    return min(wanted, allocatable) // _STEP * _STEP or None


def limited(pool: GPUPool, limits: Mapping[str, int | None], now: str) -> Condition:
    """Builds the condition MemoryLimited of a pool. `limits` has the limit in bytes, or None, of each node by name."""
    unknown = () if has_own_limit(pool) else sorted(node for node, limit in limits.items() if limit is None)
    if unknown:
        return Condition("MemoryLimited", "False", "AllocatableUnknown", _unknown(unknown), now, pool.generation)
    message = "as spec.resources.limits says" if has_own_limit(pool) else "from what pods of each node may have"
    return Condition("MemoryLimited", "True", "Limited", message, now, pool.generation)


def _unknown(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return (
        f"appliances on {', '.join(nodes[:3])}{more} have no limit of memory, because these nodes do not say how much "
        "pods may have (status.allocatable): set spec.resources.limits.memory"
    )
