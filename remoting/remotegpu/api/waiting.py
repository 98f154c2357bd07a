"""Why a claim waits: the answer that `remotegpu why` shows, and the interface that gives it."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that holds what another one waits for."""

    claim: str  # "namespace/name"
    has: str  # "0.5 of a GPU"
    held_seconds: int
    ends_in_seconds: int  # probably


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
    # Claims whose ends make room for it.
    holders: tuple[Holder, ...] = ()
    starts_in_seconds: int | None = None
    # The basis of the estimate.
    estimate: str = ""
    # In a user's form: "-p 0.25".
    smaller: tuple[str, ...] = ()


class Explainer(Protocol):
    """The interface of the operator's package for the command line: entry point `why` of `remotegpu.extensions`."""

    def __call__(
        self, namespace: str, name: str, objects: Mapping[str, Sequence[Mapping[str, Any]]], now: datetime.datetime
    ) -> Answer:
        """Explains a claim, which is among the objects.

        `objects` are the API server's by plural: gpupools, gpuclaims, resourcequotas, priorityclasses, pods (with a
        share).
        """
