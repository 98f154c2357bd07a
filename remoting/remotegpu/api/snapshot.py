"""The current pools and claims of a cluster, for dashboard and `remotegpu top`, and the interface that builds them."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict


class Share(TypedDict):
    """The part of one GPU that is reserved for a claim."""

    appliance: str
    gpu: str
    memory: int


class Claim(TypedDict):
    namespace: str
    name: str
    pool: str
    mode: str
    asks: str
    priority: str | int
    suspendable: bool
    pods: list[str]
    created: str
    phase: str
    reason: str
    message: str
    position: int  # in the queue of its pool, from 1; 0 if it does not wait there
    gpus: str
    milli: int
    conditions: list[dict[str, Any]]
    shares: list[Share]


class Appliance(TypedDict):
    name: str
    node: str
    phase: str
    message: str
    cordoned: bool
    gpus: list[dict[str, Any]]  # fields of `GpuStatus`


class Pool(TypedDict):
    name: str
    backend: str
    computeMode: str
    phase: str
    message: str
    total: dict[str, Any]  # fields of `Amount`; `free` too
    free: dict[str, Any]
    schedules: list[dict[str, Any]]
    appliances: list[Appliance]


class State(TypedDict):
    pools: list[Pool]
    claims: dict[str, Claim]  # by "namespace/name"


class Snapshots(Protocol):
    """The operator package's interface for the command line: entry point `snapshot` of `remotegpu.extensions`."""

    def __call__(self, objects: Mapping[str, Sequence[Mapping[str, Any]]], now: datetime.datetime) -> State:
        """Builds the state. `objects` are as for `remotegpu.api.waiting.Explainer`; pods are not needed."""
