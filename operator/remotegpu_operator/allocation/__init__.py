"""Decides which claim gets which GPUs: pure state and decisions, no I/O.

Requests of a pool are served by priority, then age, and none overtakes: while a request waits, no later one gets a GPU
that it could use. Otherwise a stream of small claims would keep a large one waiting forever. Requests that wait for
something else than free memory (their quota, a model that is not there, a GPU that is out of service) hold up no other.
"""

from remotegpu_operator.allocation.allocator import Allocator, Capacity
from remotegpu_operator.allocation.decisions import Decision, Placed, Request, Waiting, request_of

__all__ = ["Allocator", "Capacity", "Decision", "Placed", "Request", "Waiting", "request_of"]
