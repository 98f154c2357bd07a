"""The answer of `remotegpu why` about a waiting claim, and the interface that gives it."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that holds GPUs for which another claim waits."""

    claim: str  # "namespace/name"
    has: str  # "0.5 of a GPU"
    held_seconds: int
    ends_in_seconds: int  # an estimate


@dataclass(frozen=True, slots=True)
class Answer:
    claim: str
    pool: str
    asks: str
    phase: str
    reason: str
    message: str
    # Place in the queue of its pool, from 1; 0 if it does not wait there.
    position: int = 0
    ahead: tuple[str, ...] = ()
    # Claims that make room for this claim when they end.
    holders: tuple[Holder, ...] = ()
    starts_in_seconds: int | None = None
    # The basis of the estimate.
    estimate: str = ""
    # Smaller requests, in the form of options: "-p 0.25".
    smaller: tuple[str, ...] = ()


class Explainer(Protocol):
    """The interface of the operator's package for the command line: entry point `why` of `remotegpu.extensions`."""

    def __call__(
        self, namespace: str, name: str, objects: Mapping[str, Sequence[Mapping[str, Any]]], now: datetime.datetime
    ) -> Answer:
        """Explains the claim NAMESPACE/NAME. Raises KeyError if it is not in `objects`, ValueError if it is unreadable.

        `objects` has the cluster's objects by plural name: gpupools, gpuclaims, resourcequotas, priorityclasses, pods
        (only pods with a share).
        """
