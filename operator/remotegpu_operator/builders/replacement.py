"""The order in which appliances made from an older template are replaced."""

from collections.abc import Mapping, Set

from remotegpu.api.pools import AppliancePhase

SERVING = frozenset({AppliancePhase.READY, AppliancePhase.DRAINING})


def next_to_drain(
    phases: Mapping[str, AppliancePhase], outdated: Set[str], used: Mapping[str, int], draining: Set[str]
) -> str | None:
    """Returns the next appliance to replace: one at a time, so that the pool keeps serving.

    First those that do not serve (not in SERVING), then those that no claim is on. Of those in use only one is closed
    to new claims. While a replaced one is not ready, no other is touched.
    """
    if broken := sorted(name for name in outdated if phases.get(name) not in SERVING):
        return broken[0]
    if any(phase is not AppliancePhase.READY for name, phase in phases.items() if name not in outdated):
        return None
    # First one that is closed already; else the one that is free the soonest, as far as numbers tell.
    if idle := sorted(
        outdated, key=lambda name: (used.get(name, 0) > 0, name not in draining, used.get(name, 0), name)
    ):
        return idle[0]
    return None
