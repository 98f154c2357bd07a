"""Chooses among the GPUs with enough free memory for a request."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from remotegpu.api.claims import Placement


class Fit(NamedTuple):
    """A GPU with room for the request. `left` are the bytes that stay free. Fits sort by `left`, the tightest first."""

    left: int
    appliance: str
    slot: int


def choose(fits: Iterable[Fit], count: int, placement: Placement) -> list[Fit] | None:
    """Chooses `count` different GPUs. Returns None if there are fewer."""
    ordered = sorted(fits)
    if len(ordered) < count:
        return None
    return _pack(ordered, count) if placement == Placement.PACK else _spread(ordered, count)


def _pack(ordered: list[Fit], count: int) -> list[Fit]:
    """Chooses GPUs on as few appliances as possible, and among equal choices those with the least memory left over."""
    groups: dict[str, list[Fit]] = {}
    for fit in ordered:
        groups.setdefault(fit.appliance, []).append(fit)
    chosen: list[Fit] = []
    while len(chosen) < count:
        missing = count - len(chosen)
        enough = [group[:missing] for group in groups.values() if len(group) >= missing]
        if enough:
            return chosen + min(enough, key=lambda group: (sum(fit.left for fit in group), group[0].appliance))
        largest = max(groups.values(), key=len)
        chosen += groups.pop(largest[0].appliance)
    return chosen


def _spread(ordered: list[Fit], count: int) -> list[Fit]:
    """Chooses GPUs on as many appliances as possible, then those with the most memory left over.

    Of GPUs with equal memory the ones on the appliance with the most free memory come first.
    """
    total: Counter[str] = Counter()
    for fit in ordered:
        total[fit.appliance] += fit.left
    taken: Counter[str] = Counter()
    chosen: list[Fit] = []
    left = set(ordered)
    while len(chosen) < count:
        best = min(left, key=lambda fit: (taken[fit.appliance], -fit.left, -total[fit.appliance], fit))
        left.remove(best)
        taken[best.appliance] += 1
        chosen.append(best)
    return chosen
