"""The allocator's input and output types: requests, and the decisions about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from remotegpu.api.claims import Allocation, GPUClaim, Mode, Phase, Placement, Reason
from remotegpu.api.quantities import Ask


@dataclass(frozen=True, slots=True)
class Request:
    """A claim as the allocator sees it."""

    uid: str
    namespace: str
    name: str
    pool: str
    ask: Ask
    model: str = ""
    placement: Placement = Placement.PACK
    priority: int = 0
    created: str = ""
    # Served only by an appliance with an environment.
    offload: bool = False
    suspendable: bool = False
    # The only appliance that may serve it, if it names one.
    appliance: str = ""
    # Appliances and GPUs that it had a part of, and must get again.
    again: tuple[tuple[str, str], ...] = ()

    @property
    def turn(self) -> tuple[int, str, str, str, str]:
        """The order of waiting claims. Creation times are whole seconds; within one, names decide."""
        return (-self.priority, self.created, self.namespace, self.name, self.uid)


def request_of(claim: GPUClaim, classes: Mapping[str, int] = MappingProxyType({})) -> Request:
    """Builds the request of a claim. `classes` maps each PriorityClass to its value."""
    named = claim.spec.priority_class
    return Request(
        uid=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        pool=claim.spec.pool,
        ask=claim.spec.ask,
        model=claim.spec.model,
        placement=claim.spec.placement,
        priority=classes.get(named, 0) if named else claim.spec.priority,
        created=claim.created,
        offload=claim.spec.mode is Mode.OFFLOAD,
        suspendable=claim.spec.suspendable,
        appliance=claim.spec.appliance,
        again=tuple((each.appliance, each.gpu) for each in claim.status.allocations)
        if claim.status.phase is Phase.SUSPENDED
        else (),
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """The request has its GPUs; the bytes are what the appliances are to enforce."""

    request: Request
    allocations: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The decision that the request has no GPUs, with the reason for programs and for people."""

    request: Request
    reason: Reason
    message: str


Decision = Placed | Waiting
