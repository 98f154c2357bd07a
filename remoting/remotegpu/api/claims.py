"""GPUClaim as typed objects; `crds/gpuclaims.yaml` defines each field."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from remotegpu.api.conditions import Condition
from remotegpu.api.durations import format_duration, parse_duration
from remotegpu.api.kubernetes import DEFAULT_POOL
from remotegpu.api.quantities import (
    MILLI_PER_GPU,
    Ask,
    Compute,
    format_milli,
    format_quantity,
    parse_compute,
    parse_fraction,
    parse_quantity,
)

_MIB: Final = 1 << 20
_POD_NAME_IN_CLAIM: Final = 200


class Phase(StrEnum):
    PENDING = "Pending"
    ALLOCATED = "Allocated"
    LOST = "Lost"
    SUSPENDED = "Suspended"
    EXPIRED = "Expired"


class Reason(StrEnum):
    NOT_SEEN = "NotSeen"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    NO_SUCH_POOL = "NoSuchPool"
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    POOL_NOT_READY = "PoolNotReady"
    NO_ENVIRONMENT = "NoEnvironment"
    NO_MATCHING_GPU = "NoMatchingGPU"
    TOO_LARGE = "TooLarge"
    MIXED_MEMORY = "MixedMemory"
    QUOTA_EXCEEDED = "QuotaExceeded"
    ALLOCATED = "Allocated"
    NO_DEVICE_PLUGIN = "NoDevicePlugin"
    GPU_UNHEALTHY = "GPUUnhealthy"
    APPLIANCE_LOST = "ApplianceLost"
    SUSPENDING = "Suspending"
    NOT_SUSPENDED = "NotSuspended"
    MOVING = "Moving"
    NOT_MOVED = "NotMoved"
    RESIZING = "Resizing"
    NOT_RESIZED = "NotResized"
    BY_USER = "ByUser"
    BY_SCHEDULE = "BySchedule"
    FOR_PRIORITY = "ForPriority"
    START_DEADLINE_EXCEEDED = "StartDeadlineExceeded"

    @classmethod
    def _missing_(cls, _: object) -> "Reason":
        """Maps an unknown reason to NOT_SEEN: a claim that a later release wrote still counts after a rollback."""
        return cls.NOT_SEEN


class Placement(StrEnum):
    PACK = "Pack"
    SPREAD = "Spread"


class Mode(StrEnum):
    """The kind of a claim's sessions."""

    DRIVER = "driver"
    OFFLOAD = "offload"


@dataclass(frozen=True, slots=True)
class PodReference:
    name: str
    uid: str

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "PodReference":
        return cls(stored["name"], stored["uid"])

    def to_object(self) -> dict[str, Any]:
        return {"name": self.name, "uid": self.uid}


@dataclass(frozen=True, slots=True)
class Allocation:
    """The share of one GPU, as the appliance enforces it."""

    appliance: str
    node: str
    gpu: str
    model: str
    memory: int
    milli: int

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "Allocation":
        return cls(**{name: stored[name] for name in cls.__slots__})

    def to_object(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Move:
    """The move of a claim's allocations from one appliance to another."""

    source: str
    to: tuple[Allocation, ...]  # replacements for the source's allocations, in the same order

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "Move":
        return cls(stored["source"], tuple(map(Allocation.from_object, stored["to"])))

    def to_object(self) -> dict[str, Any]:
        return {"source": self.source, "to": [allocation.to_object() for allocation in self.to]}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address at which clients reach one appliance of the claim."""

    appliance: str
    endpoint: str
    server_name: str

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "Endpoint":
        return cls(stored["appliance"], stored["endpoint"], stored["serverName"])

    def to_object(self) -> dict[str, Any]:
        return {"appliance": self.appliance, "endpoint": self.endpoint, "serverName": self.server_name}


def share_to_object(ask: Ask) -> dict[str, Any]:
    """Returns the share in the form of a claim's spec. Two whole GPUs become `fraction: "2"`, as people write them."""
    time = _compute_to_object(ask.compute)
    if ask.memory_bytes:
        return {"count": ask.count, "memory": format_quantity(ask.memory_bytes), **time}
    if ask.milli_per_gpu == MILLI_PER_GPU:
        return {"count": 1, "fraction": str(ask.count), **time}
    return {"count": ask.count, "fraction": format_milli(ask.milli_per_gpu), **time}


def share_from_object(stored: Mapping[str, Any]) -> Ask:
    """Reads the share from a claim's spec."""
    count: int = stored.get("count", 1)
    if "memory" in stored:
        return Ask(count, 0, int(parse_quantity(stored["memory"])), compute_from_object(stored))
    each = parse_fraction(str(stored.get("fraction", "1")))
    return Ask(count * each.count, each.milli_per_gpu, compute=compute_from_object(stored))


def compute_from_object(stored: Mapping[str, Any]) -> Compute:
    """Reads the part of the GPUs' time that a claim's spec asks for."""
    guarantee, limit = (None if key not in stored else str(stored[key]) for key in ("compute", "computeLimit"))
    return parse_compute(guarantee, limit)


def _compute_to_object(compute: Compute) -> dict[str, str]:
    guarantee = {"compute": format_milli(compute.milli)} if compute.milli else {}
    is_limited = compute.limit_milli != MILLI_PER_GPU
    return guarantee | ({"computeLimit": format_milli(compute.limit_milli)} if is_limited else {})


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    pool: str = DEFAULT_POOL
    mode: Mode = Mode.DRIVER
    model: str = ""
    ask: Ask = Ask()
    placement: Placement = Placement.PACK
    start_deadline: int | None = None  # seconds; None: the pool's value
    priority: int = 0
    priority_class: str = ""  # a PriorityClass, whose value counts in place of `priority`
    suspend: bool = False
    suspendable: bool = False  # may be suspended by a schedule of the pool, or for a claim of higher priority
    movable: bool = False  # may move away from an appliance that is to be replaced
    appliance: str = ""  # its wanted appliance; empty: any
    pod: PodReference | None = None

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "ClaimSpec":
        return cls(
            pool=stored.get("pool", DEFAULT_POOL),
            mode=Mode(stored.get("mode", Mode.DRIVER)),
            model=stored.get("model", ""),
            ask=share_from_object(stored),
            placement=Placement(stored.get("placement", Placement.PACK)),
            start_deadline=parse_duration(stored["startDeadline"]) if "startDeadline" in stored else None,
            priority=stored.get("priority", 0),
            priority_class=stored.get("priorityClassName", ""),
            suspend=stored.get("suspend", False),
            suspendable=stored.get("suspendable", False),
            movable=stored.get("movable", False),
            appliance=stored.get("appliance", ""),
            pod=PodReference.from_object(stored["pod"]) if "pod" in stored else None,
        )

    def to_object(self) -> dict[str, Any]:
        written: dict[str, Any] = {
            "pool": self.pool,
            "mode": str(self.mode),
            "placement": str(self.placement),
            "priority": self.priority,
            **share_to_object(self.ask),
        }
        if self.model:
            written["model"] = self.model
        if self.start_deadline is not None:
            written["startDeadline"] = format_duration(self.start_deadline)
        if self.priority_class:
            written["priorityClassName"] = self.priority_class
        if self.suspend:
            written["suspend"] = True
        if self.suspendable:
            written["suspendable"] = True
        if self.movable:
            written["movable"] = True
        if self.appliance:
            written["appliance"] = self.appliance
        if self.pod is not None:
            written["pod"] = self.pod.to_object()
        return written


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """The operator's decision about a claim. The sums are computed from the allocations."""

    phase: Phase = Phase.PENDING
    reason: Reason = Reason.NOT_SEEN
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    move: Move | None = None
    resize: tuple[Allocation, ...] = ()  # the allocations with their new sizes; empty: no resize
    endpoints: tuple[Endpoint, ...] = ()
    consumers: tuple[PodReference, ...] = ()
    observed_generation: int = 0
    share_since: str = ""  # when the share last began, moved or changed its size; empty: not known

    @property
    def milli(self) -> int:
        return sum(allocation.milli for allocation in self.allocations)

    @property
    def held(self) -> tuple[Allocation, ...]:
        """All that is reserved for the claim: each allocation at the larger of old and new size, and a move's target.

        The move's target has `milli` 0, so that the claim is not charged twice.
        """
        moves = tuple(replace(each, milli=0) for each in (self.move.to if self.move else ()))
        pairs = zip(self.allocations, self.resize or self.allocations, strict=True)
        return tuple(max(pair, key=lambda each: each.memory) for pair in pairs) + moves

    @property
    def memory(self) -> int:
        """Bytes of each GPU; the smallest number, if the GPUs differ slightly in size."""
        return min((allocation.memory for allocation in self.allocations), default=0)

    @property
    def gpus(self) -> str:
        return gpus_text(self.allocations)

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "ClaimStatus":
        """Reads a status. Raises KeyError or ValueError if no operator can have written it."""
        sizes = [len(stored.get(name) or ()) for name in ("allocations", "resize")]
        if sizes[1] not in (0, sizes[0]):
            raise ValueError(f"its status has {sizes[0]} allocations, of which {sizes[1]} are resized")
        return cls(
            phase=Phase(stored.get("phase", Phase.PENDING)),
            reason=Reason(stored.get("reason", Reason.NOT_SEEN)),
            message=stored.get("message", ""),
            conditions=tuple(map(Condition.from_object, stored.get("conditions", ()))),
            allocations=tuple(map(Allocation.from_object, stored.get("allocations", ()))),
            resize=tuple(map(Allocation.from_object, stored.get("resize") or ())),
            move=None if stored.get("move") is None else Move.from_object(stored["move"]),
            endpoints=tuple(map(Endpoint.from_object, stored.get("endpoints", ()))),
            consumers=tuple(map(PodReference.from_object, stored.get("consumers", ()))),
            observed_generation=stored.get("observedGeneration", 0),
            share_since=stored.get("shareSince", ""),
        )

    def to_object(self) -> dict[str, Any]:
        return {
            "phase": str(self.phase),
            "reason": str(self.reason),
            "message": self.message,
            "gpus": self.gpus,
            # For people, hence whole MiB; the exact bytes are in the allocations.
            "memory": format_quantity(self.memory // _MIB * _MIB),
            "milli": self.milli,
            "observedGeneration": self.observed_generation,
            "conditions": [condition.to_object() for condition in self.conditions],
            "allocations": [allocation.to_object() for allocation in self.allocations],
            # A merge patch removes members that are null.
            "resize": [allocation.to_object() for allocation in self.resize] or None,
            "move": None if self.move is None else self.move.to_object(),
            "endpoints": [endpoint.to_object() for endpoint in self.endpoints],
            "consumers": [consumer.to_object() for consumer in self.consumers],
            "shareSince": self.share_since or None,
        }


@dataclass(frozen=True, slots=True)
class GPUClaim:
    namespace: str
    name: str
    uid: str
    created: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: ClaimSpec = field(default_factory=ClaimSpec)
    status: ClaimStatus = field(default_factory=ClaimStatus)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def lease_id(self) -> str:
        """The id of the claim's lease on appliances: 32 hex digits."""
        return lease_id_of(self.uid)

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "GPUClaim":
        metadata = stored["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            created=metadata.get("creationTimestamp", ""),
            generation=metadata.get("generation", 0),
            resource_version=metadata.get("resourceVersion", ""),
            labels=metadata.get("labels") or {},
            spec=ClaimSpec.from_object(stored["spec"]),
            status=ClaimStatus.from_object(stored.get("status", {})),
        )


def lease_id_of(uid: str) -> str:
    return uid.replace("-", "")


def pod_claim_name(pod_name: str, pod_uid: str) -> str:
    """Returns the name of a pod's claim. The uid in it keeps a recreated pod from getting the claim of the old one."""
    return f"{pod_name[:_POD_NAME_IN_CLAIM].rstrip('-.')}-{pod_uid}"


def gpus_text(allocations: tuple[Allocation, ...]) -> str:
    """Returns "2 x NVIDIA A100", models in the order of the allocations; "-" for none."""
    counts: dict[str, int] = {}
    for allocation in allocations:
        counts[allocation.model] = counts.get(allocation.model, 0) + 1
    return ", ".join(f"{count} x {model}" for model, count in counts.items()) or "-"
