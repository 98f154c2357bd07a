"""Chooses among the GPUs with enough free memory for a request."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from remotegpu.api.claims import Placement


class Fit(NamedTuple):
    """A GPU with room for the request, and the bytes that would be left free on it. Ordered: the tightest is first."""

    left: int
    appliance: str
    slot: int


def choose(fits: Iterable[Fit], count: int, placement: Placement) -> list[Fit] | None:
    """Chooses `count` different GPUs; None if there are not so many."""
    ordered = sorted(fits)
    if len(ordered) < count:
        return None
    return _pack(ordered, count) if placement == Placement.PACK else _spread(ordered, count)


def _pack(ordered: list[Fit], count: int) -> list[Fit]:
    """Chooses the fewest appliances, and among equal choices the one with the least memory left over."""
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
    """Chooses as many appliances as possible, the emptiest GPUs, and of those the ones with the emptiest neighbours."""
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
