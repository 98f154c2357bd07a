"""How long a waiting request reserves GPUs against others: the rule of both allocators. Pure.

A request that came first reserves the GPUs that suit it, else small ones would keep a large one waiting without end.
But it is unknown how long programs run, so a reservation without an end would let one tenant stop a pool: it ends, and
others are placed behind it. A request whose tenant holds a part of those GPUs may well wait for itself: its reservation
against other tenants begins later. Within a tenant the order holds for the longest time.
"""

from typing import Final

# How long a request reserves, once.
RESERVES_SECONDS: Final = 1800.0
# How long a request waits before that if its tenant holds a part of the GPUs.
HOLDER_WAITS_SECONDS: Final = 600.0
# No request waits longer for free GPUs, whichever requests reserved them: in a stream of requests that come before it
# by their priority, each might reserve again.
LONGEST_SECONDS: Final = HOLDER_WAITS_SECONDS + RESERVES_SECONDS
_CHANGES: Final = (HOLDER_WAITS_SECONDS, RESERVES_SECONDS, LONGEST_SECONDS)


def reserves(waited: float, *, holds: bool) -> bool:
    """Whether a request that has waited so many seconds keeps other tenants from the GPUs that it waits for.

    `holds`: its own tenant has a part of them.
    """
    begun = HOLDER_WAITS_SECONDS if holds else 0.0
    return begun <= waited < begun + RESERVES_SECONDS


def reserves_within_tenant(waited: float) -> bool:
    """Whether a request that has waited so many seconds keeps others of its tenant from the GPUs it waits for."""
    return waited < LONGEST_SECONDS


def heeds(waited: float) -> bool:
    """Whether a request that has waited so many seconds respects the reservations of others."""
    return waited < LONGEST_SECONDS


def stage(since: float, now: float) -> float:
    """Returns the stage of a wait, on which the answers depend: the last time of a change, in seconds of the wait."""
    return max((each for each in _CHANGES if since + each <= now), default=0.0)


def next_change(since: float, now: float) -> float | None:
    """Returns when an answer for a request that waits since then changes next; None if never."""
    return next((since + each for each in _CHANGES if since + each > now), None)
