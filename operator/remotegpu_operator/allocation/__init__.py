"""Decides which claim gets which GPUs: pure state and decisions, no I/O.

The requests of a pool are served by priority, then by age. A request that waits for free memory reserves the GPUs that
could serve it, for a limited time. Later requests do not get these GPUs: otherwise a stream of small claims would keep
a large claim waiting without end. A request that waits for another reason (a quota, a missing model, a GPU out of
service) does not delay other requests.
"""

from remotegpu_operator.allocation.allocator import Allocator, Capacity
from remotegpu_operator.allocation.decisions import Decision, Placed, Request, Waiting, request_of
from remotegpu_operator.allocation.packing_state import About, PackingState

__all__ = [
    "About",
    "Allocator",
    "Capacity",
    "Decision",
    "PackingState",
    "Placed",
    "Request",
    "Waiting",
    "request_of",
]
