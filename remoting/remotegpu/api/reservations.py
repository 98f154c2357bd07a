"""The rule of both allocators for reservations: how long a waiting request keeps GPUs from others. Pure.

A waiting request reserves the GPUs that suit it against later requests; otherwise small requests would starve a large
one. The run time of programs is unknown, so a reservation without an end would let one tenant block a pool. Therefore
each reservation ends, and later requests are placed. If the tenant of a request holds a part of these GPUs, the request
probably waits for its own tenant: its reservation against other tenants begins later. Among the requests of one tenant
the order holds for `LONGEST_SECONDS`.
"""

from typing import Final

# The length of a request's reservation. A request has only one.
RESERVES_SECONDS: Final = 1800.0
# The delay of the reservation if the request's tenant holds a part of the GPUs.
HOLDER_WAITS_SECONDS: Final = 600.0
# After this time a request ignores the reservations of others. Otherwise a stream of requests with higher priority
# could block it by one reservation after another.
LONGEST_SECONDS: Final = HOLDER_WAITS_SECONDS + RESERVES_SECONDS
_CHANGES: Final = (HOLDER_WAITS_SECONDS, RESERVES_SECONDS, LONGEST_SECONDS)


def reserves(waited: float, *, holds: bool) -> bool:
    """Whether a request that has waited `waited` seconds reserves its GPUs against other tenants.

    `holds` is true if the request's own tenant has a part of these GPUs.
    """
    begun = HOLDER_WAITS_SECONDS if holds else 0.0
    return begun <= waited < begun + RESERVES_SECONDS


def reserves_within_tenant(waited: float) -> bool:
    """Whether a request that has waited `waited` seconds reserves its GPUs against others of the same tenant."""
    return waited < LONGEST_SECONDS


def heeds(waited: float) -> bool:
    """Whether a request that has waited `waited` seconds respects the reservations of others."""
    return waited < LONGEST_SECONDS


def stage(since: float, now: float) -> float:
    """Returns the stage of a wait: the start of the stage in seconds of waiting. Within a stage no answer changes."""
    return max((each for each in _CHANGES if since + each <= now), default=0.0)


def next_change(since: float, now: float) -> float | None:
    """Returns the next time when an answer changes for a request that waits since `since`; None if never."""
    return next((since + each for each in _CHANGES if since + each > now), None)
