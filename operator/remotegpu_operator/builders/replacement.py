"""Decides the order in which appliances with an outdated pod template are replaced."""

from collections.abc import Mapping, Set

from remotegpu.api.pools import AppliancePhase

SERVING = frozenset({AppliancePhase.READY, AppliancePhase.DRAINING})


def next_to_drain(
    phases: Mapping[str, AppliancePhase], outdated: Set[str], used: Mapping[str, int], draining: Set[str]
) -> str | None:
    """Returns the next appliance to replace, or None. Appliances are replaced one at a time: the pool keeps serving.

    Appliances that do not serve (not in SERVING) come first, then those without a claim, then those with the fewest
    claims. While a replaced appliance is not ready, the function returns None. `used` has the number of claims on each
    appliance.
    """
    if broken := sorted(name for name in outdated if phases.get(name) not in SERVING):
        return broken[0]
    if any(phase is not AppliancePhase.READY for name, phase in phases.items() if name not in outdated):
        return None
    # Prefer an appliance without claims, then one that is draining already, then the one with the fewest claims.
    if idle := sorted(
        outdated, key=lambda name: (used.get(name, 0) > 0, name not in draining, used.get(name, 0), name)
    ):
        return idle[0]
    return None
