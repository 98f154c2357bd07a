"""For how long a request that waits keeps others from what it waits for: the rule of both allocators. Pure.

A request that came first reserves what would suit it, else small ones would keep a large one waiting without end. But
nobody knows how long programs run, so that a reservation without an end would let one tenant stop a pool: it ends, and
is filled behind. One whose tenant holds a part of what it waits for may well wait for itself: it keeps other tenants
from it later. Within a tenant the order holds for the longest time.
"""

from typing import Final

# How long a request reserves, once.
RESERVES_SECONDS: Final = 1800.0
# How long one waits before that, whose tenant holds a part of what it waits for.
HOLDER_WAITS_SECONDS: Final = 600.0
# Nobody waits longer for what is free, whoever reserved it: of a stream of requests that come before it, by their
# priority, each might reserve anew.
LONGEST_SECONDS: Final = HOLDER_WAITS_SECONDS + RESERVES_SECONDS
_CHANGES: Final = (HOLDER_WAITS_SECONDS, RESERVES_SECONDS, LONGEST_SECONDS)


def reserves(waited: float, *, holds: bool) -> bool:
    """Whether a request that has waited so many seconds keeps other tenants from what it waits for.

    `holds`: its own tenant has a part of that.
    """
    begun = HOLDER_WAITS_SECONDS if holds else 0.0
    return begun <= waited < begun + RESERVES_SECONDS


def reserves_within_tenant(waited: float) -> bool:
    """Whether a request that has waited so many seconds keeps others of its tenant from what it waits for."""
    return waited < LONGEST_SECONDS


def heeds(waited: float) -> bool:
    """Whether a request that has waited so many seconds leaves alone what others reserve."""
    return waited < LONGEST_SECONDS


def stage(since: float, now: float) -> float:
    """How long a request has waited, as far as an answer depends on it: the last of the times at which one changes."""
    return max((each for each in _CHANGES if since + each <= now), default=0.0)


def next_change(since: float, now: float) -> float | None:
    """When one of the answers for a request that waits since then changes next; None if never."""
    return next((since + each for each in _CHANGES if since + each > now), None)
