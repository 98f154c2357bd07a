"""Why a claim waits: what `remotegpu why` shows, and what answers it."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that has what another one waits for."""

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
    # In the queue of its pool, from 1; 0 if it does not wait there.
    position: int = 0
    ahead: tuple[str, ...] = ()
    # Whose ends make room for it.
    holders: tuple[Holder, ...] = ()
    starts_in_seconds: int | None = None
    # On what that rests.
    estimate: str = ""
    # As a person would write them: "-p 0.25".
    smaller: tuple[str, ...] = ()


class Explainer(Protocol):
    """What the command line needs of the operator's package: its entry point `why` of `remotegpu.extensions`."""

    def __call__(
        self, namespace: str, name: str, objects: Mapping[str, Sequence[Mapping[str, Any]]], now: datetime.datetime
    ) -> Answer:
        """`objects` as the API server has them, by plural: gpupools, gpuclaims, resourcequotas, priorityclasses, pods
        (those with a share). The claim is among them."""
