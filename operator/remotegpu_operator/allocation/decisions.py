"""The allocator's input and output types: requests, and the decisions about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from remotegpu.api.claims import Allocation, GPUClaim, Mode, Phase, Placement, Reason
from remotegpu.api.quantities import Ask


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of a claim that the allocator needs."""

    uid: str
    namespace: str
    name: str
    pool: str
    ask: Ask
    model: str = ""
    placement: Placement = Placement.PACK
    priority: int = 0
    created: str = ""
    # True if only an appliance with an environment for offload may serve the request.
    offload: bool = False
    suspendable: bool = False
    # The only appliance that may serve the request; empty for any.
    appliance: str = ""
    # The appliances and GPUs that a suspended claim must get again; empty for other claims.
    again: tuple[tuple[str, str], ...] = ()
    # Appliances that do not get the claim now, because they have refused it.
    refused_by: frozenset[str] = frozenset()

    @property
    def turn(self) -> tuple[int, str, str, str, str]:
        """The sort key of waiting requests: priority, creation time, name. Creation times are whole seconds."""
        return (-self.priority, self.created, self.namespace, self.name, self.uid)


def request_of(
    claim: GPUClaim, classes: Mapping[str, int] = MappingProxyType({}), refused_by: frozenset[str] = frozenset()
) -> Request:
    """Builds the request of a claim. `classes` has the value of each PriorityClass by name."""
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
        refused_by=refused_by,
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """The decision that the request gets these GPUs. The appliances enforce the bytes of each allocation."""

    request: Request
    allocations: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The decision that the request must wait. `reason` is for programs, `message` for people."""

    request: Request
    reason: Reason
    message: str


Decision = Placed | Waiting
