"""GPUPool as typed objects; `crds/gpupools.yaml` defines each field."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from remotegpu.api.conditions import Condition
from remotegpu.api.durations import format_duration, parse_duration
from remotegpu.api.kubernetes import PACK_ANNOTATION
from remotegpu.api.modes import Backend, ComputeMode, Landlock, WorkerWrites
from remotegpu.api.quantities import format_quantity, parse_quantity
from remotegpu.api.schedules import PackSpec, PackStatus, Schedule


class PoolPhase(StrEnum):
    PENDING = "Pending"
    READY = "Ready"
    DEGRADED = "Degraded"
    NOT_READY = "NotReady"


class AppliancePhase(StrEnum):
    STARTING = "Starting"
    READY = "Ready"
    DRAINING = "Draining"
    LOST = "Lost"


@dataclass(frozen=True, slots=True)
class SoftwareSpec:
    gpus: int = 1
    memory: int = 8 << 30
    threads: int | None = None  # None: the CPUs of the appliance

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "SoftwareSpec":
        return cls(
            gpus=stored.get("gpus", cls().gpus),
            memory=int(parse_quantity(stored["memory"])) if "memory" in stored else cls().memory,
            threads=stored.get("threads"),
        )

    def to_object(self) -> dict[str, Any]:
        written: dict[str, Any] = {"gpus": self.gpus, "memory": format_quantity(self.memory)}
        return written if self.threads is None else {**written, "threads": self.threads}


@dataclass(frozen=True, slots=True)
class LimitsSpec:
    """Limits of an appliance. None means the default of the appliance."""

    sessions_per_gpu: int | None = None
    sessions_per_claim: int | None = None
    sessions_per_namespace: int | None = None
    host_memory_per_claim: int | None = None  # bytes
    host_memory_per_namespace: int | None = None  # bytes

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "LimitsSpec":
        return cls(
            stored.get("sessionsPerGPU"),
            stored.get("sessionsPerClaim"),
            stored.get("sessionsPerNamespace"),
            _bytes_of(stored.get("hostMemoryPerClaim")),
            _bytes_of(stored.get("hostMemoryPerNamespace")),
        )

    def to_object(self) -> dict[str, Any]:
        memory = {
            "hostMemoryPerClaim": self.host_memory_per_claim,
            "hostMemoryPerNamespace": self.host_memory_per_namespace,
        }
        return _given(
            sessionsPerGPU=self.sessions_per_gpu,
            sessionsPerClaim=self.sessions_per_claim,
            sessionsPerNamespace=self.sessions_per_namespace,
            **{name: None if value is None else format_quantity(value) for name, value in memory.items()},
        )


def _bytes_of(quantity: str | None) -> int | None:
    return None if quantity is None else int(parse_quantity(quantity))


@dataclass(frozen=True, slots=True)
class UpdateSpec:
    drain_deadline: int = 3600  # seconds

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "UpdateSpec":
        return cls(parse_duration(stored["drainDeadline"])) if "drainDeadline" in stored else cls()

    def to_object(self) -> dict[str, Any]:
        return {"drainDeadline": format_duration(self.drain_deadline)}


class OffloadBackend(StrEnum):
    """The kind of accelerator that an environment computes on."""

    CUDA = "cuda"
    ROCM = "rocm"
    XPU = "xpu"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """A Python interpreter in the appliance's image that serves offload sessions."""

    name: str
    python: str
    backend: OffloadBackend | None = None  # None: the backend that the environment finds
    exclusive: bool = False  # a session has its appliance alone; required for ROCm and XPU
    cuda_direct: bool = False  # sessions open NVIDIA's devices themselves, without limits

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "EnvironmentSpec":
        backend = stored.get("backend")
        return cls(
            stored["name"],
            stored["python"],
            None if backend is None else OffloadBackend(backend),
            exclusive=bool(stored.get("exclusive")),
            cuda_direct=bool(stored.get("cudaDirect")),
        )

    def to_object(self) -> dict[str, Any]:
        return _given(
            name=self.name,
            python=self.python,
            backend=self.backend and str(self.backend),
            exclusive=self.exclusive or None,
            cudaDirect=self.cuda_direct or None,
        )

    @property
    def option(self) -> str:
        """Returns the value for the appliance's option --offload."""
        words = [str(self.backend)] if self.backend else []
        words += ["exclusive"] * self.exclusive + ["direct"] * self.cuda_direct
        return f"{self.name}={self.python}" + (f":{','.join(words)}" if words else "")


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a whole GPU for an hour. `model` is a part of the names of the GPU models that have this price."""

    model: str
    gpu_hour: str

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "Price":
        return cls(stored["model"], stored["gpuHour"])

    def to_object(self) -> dict[str, Any]:
        return {"model": self.model, "gpuHour": self.gpu_hour}


class IdleAction(StrEnum):
    """The action for a claim that has a share but no session."""

    WARN = "Warn"
    RELEASE = "Release"


@dataclass(frozen=True, slots=True)
class IdleSpec:
    after: int  # seconds
    action: IdleAction = IdleAction.WARN
    grace: int = 600  # seconds from the warning to the release

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "IdleSpec":
        return cls(
            parse_duration(stored["after"]),
            IdleAction(stored.get("action", IdleAction.WARN)),
            parse_duration(stored.get("grace", "10m")),
        )

    def to_object(self) -> dict[str, Any]:
        grace = format_duration(self.grace)
        return {"after": format_duration(self.after), "action": str(self.action), "grace": grace}


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool's spec. Tolerations and resources are copied unchanged into the appliance's pod, so they have no types."""

    backend: Backend = Backend.SOFTWARE
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    runtime_class_name: str | None = None
    image: str | None = None  # None: the operator's APPLIANCE_IMAGE
    image_pull_policy: str | None = None
    software: SoftwareSpec = field(default_factory=SoftwareSpec)
    gpus_per_node: int | None = None  # None: all that the node offers
    managed_memory: int | None = None  # bytes; None: the client's default
    limits: LimitsSpec = field(default_factory=LimitsSpec)
    offload: tuple[EnvironmentSpec, ...] = ()
    compute_mode: ComputeMode = ComputeMode.SHARED
    namespaces: frozenset[str] = frozenset()  # namespaces whose claims the pool serves; empty: all
    local_sockets: bool = True  # for pods on an appliance's node; the appliance's pod requests LOCAL_SOCKETS
    public_code: str | None = None  # the namespace whose device code all namespaces may share; None: none
    landlock: Landlock | None = None  # None: as `GPUPool.landlock` says
    worker_writes: WorkerWrites = WorkerWrites.ANYWHERE
    schedules: tuple[Schedule, ...] = ()
    prices: tuple[Price, ...] = ()
    idle: IdleSpec | None = None
    pack: PackSpec = field(default_factory=PackSpec)
    suspend_for_priority: bool = False
    start_deadline: int = 300  # seconds
    connection_grace: int = 60  # seconds
    cordoned: frozenset[str] = frozenset()  # nodes whose appliance gets no new claims
    move_bandwidth: int | None = None  # bytes per second of a claim that moves; None: no limit
    update: UpdateSpec = field(default_factory=UpdateSpec)
    resources: Mapping[str, Any] = field(default_factory=dict)
    priority_class_name: str | None = None  # None: the cluster's default
    temporary_storage: int = 4 << 30  # bytes

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "PoolSpec":
        return cls(
            backend=Backend(stored.get("backend", Backend.SOFTWARE)),
            node_selector=dict(stored.get("nodeSelector", {})),
            tolerations=tuple(stored.get("tolerations", ())),
            runtime_class_name=stored.get("runtimeClassName"),
            image=stored.get("image"),
            image_pull_policy=stored.get("imagePullPolicy"),
            software=SoftwareSpec.from_object(stored.get("software", {})),
            gpus_per_node=stored.get("gpusPerNode"),
            managed_memory=int(parse_quantity(stored["managedMemory"])) if "managedMemory" in stored else None,
            limits=LimitsSpec.from_object(stored.get("limits", {})),
            offload=tuple(map(EnvironmentSpec.from_object, stored.get("offload", ()))),
            compute_mode=ComputeMode(stored.get("compute", {}).get("mode", ComputeMode.SHARED)),
            namespaces=frozenset(stored.get("namespaces", ())),
            local_sockets=stored.get("localSockets", True),
            public_code=stored.get("publicCode"),
            landlock=Landlock(stored["landlock"]) if "landlock" in stored else None,
            worker_writes=WorkerWrites(stored.get("workerWrites", WorkerWrites.ANYWHERE)),
            schedules=tuple(map(Schedule.from_object, stored.get("schedules", ()))),
            prices=tuple(map(Price.from_object, stored.get("prices", ()))),
            idle=IdleSpec.from_object(stored["idle"]) if "idle" in stored else None,
            pack=PackSpec.from_object(stored.get("pack", {})),
            suspend_for_priority=stored.get("suspendForPriority", False),
            start_deadline=parse_duration(stored["startDeadline"]) if "startDeadline" in stored else 300,
            connection_grace=parse_duration(stored["connectionGrace"]) if "connectionGrace" in stored else 60,
            cordoned=frozenset(stored.get("cordoned", ())),
            move_bandwidth=int(parse_quantity(stored["moveBandwidth"])) if "moveBandwidth" in stored else None,
            update=UpdateSpec.from_object(stored.get("update", {})),
            resources=dict(stored.get("resources", {})),
            priority_class_name=stored.get("priorityClassName"),
            temporary_storage=int(parse_quantity(stored.get("temporaryStorage", "4Gi"))),
        )

    def to_object(self) -> dict[str, Any]:
        return _given(
            backend=str(self.backend),
            nodeSelector=dict(self.node_selector) or None,
            tolerations=list(self.tolerations) or None,
            runtimeClassName=self.runtime_class_name,
            image=self.image,
            imagePullPolicy=self.image_pull_policy,
            # The API server refuses this field with another backend.
            software=self.software.to_object() if self.backend == Backend.SOFTWARE else None,
            gpusPerNode=self.gpus_per_node,
            managedMemory=None if self.managed_memory is None else format_quantity(self.managed_memory),
            limits=self.limits.to_object() or None,
            offload=[each.to_object() for each in self.offload] or None,
            compute=None if self.compute_mode is ComputeMode.SHARED else {"mode": str(self.compute_mode)},
            namespaces=sorted(self.namespaces) or None,
            localSockets=None if self.local_sockets else False,
            publicCode=self.public_code,
            landlock=self.landlock and str(self.landlock),
            workerWrites=None if self.worker_writes is WorkerWrites.ANYWHERE else str(self.worker_writes),
            schedules=[each.to_object() for each in self.schedules] or None,
            prices=[each.to_object() for each in self.prices] or None,
            idle=self.idle and self.idle.to_object(),
            pack=None if self.pack == PackSpec() else self.pack.to_object(),
            suspendForPriority=self.suspend_for_priority or None,
            startDeadline=format_duration(self.start_deadline),
            connectionGrace=format_duration(self.connection_grace),
            cordoned=sorted(self.cordoned) or None,
            moveBandwidth=None if self.move_bandwidth is None else format_quantity(self.move_bandwidth),
            update=self.update.to_object(),
            resources=dict(self.resources) or None,
            priorityClassName=self.priority_class_name,
            temporaryStorage=format_quantity(self.temporary_storage),
        )


@dataclass(frozen=True, slots=True)
class GpuStatus:
    uuid: str
    model: str
    memory: int
    shareable: int
    healthy: bool = True
    message: str = ""
    allocated_milli: int = 0
    allocated_memory: int = 0

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "GpuStatus":
        return cls(
            uuid=stored["uuid"],
            model=stored["model"],
            memory=stored["memory"],
            shareable=stored["shareable"],
            healthy=stored["healthy"],
            message=stored.get("message", ""),
            allocated_milli=stored.get("allocatedMilli", 0),
            allocated_memory=stored.get("allocatedMemory", 0),
        )

    def to_object(self) -> dict[str, Any]:
        return {
            "uuid": self.uuid,
            "model": self.model,
            "memory": self.memory,
            "shareable": self.shareable,
            "healthy": self.healthy,
            "message": self.message,
            "allocatedMilli": self.allocated_milli,
            "allocatedMemory": self.allocated_memory,
        }


@dataclass(frozen=True, slots=True)
class EnvironmentStatus:
    """An environment as its appliance reports it."""

    name: str
    backend: str
    python: str
    # The distributions, by name, whose versions decide whether a client is compatible: "numpy 2.1.3, torch 2.15.0".
    packages: str = ""

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "EnvironmentStatus":
        return cls(stored["name"], stored["backend"], stored["python"], stored.get("packages", ""))

    def to_object(self) -> dict[str, Any]:
        return {"name": self.name, "backend": self.backend, "python": self.python, "packages": self.packages}

    def __str__(self) -> str:
        return f"{self.name} ({self.backend})"


# The reason of an appliance that serves its present claims but accepts no new one.
NO_ROOM_FOR_SESSIONS: Final = "NoRoomForSessions"


@dataclass(frozen=True, slots=True)
class ApplianceStatus:
    name: str
    node: str
    phase: AppliancePhase = AppliancePhase.STARTING
    reason: str = ""
    message: str = ""
    address: str = ""  # "ip:7070"
    server_name: str = ""
    image: str = ""
    gpus: tuple[GpuStatus, ...] = ()
    environments: tuple[EnvironmentStatus, ...] = ()
    driver: int = 0  # the version of CUDA that its driver provides, as 13000; 0: not known

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "ApplianceStatus":
        return cls(
            name=stored["name"],
            node=stored["node"],
            phase=AppliancePhase(stored["phase"]),
            reason=stored.get("reason", ""),
            message=stored.get("message", ""),
            address=stored.get("address", ""),
            server_name=stored.get("serverName", ""),
            image=stored.get("image", ""),
            gpus=tuple(map(GpuStatus.from_object, stored.get("gpus", ()))),
            environments=tuple(map(EnvironmentStatus.from_object, stored.get("environments", ()))),
            driver=stored.get("driver", 0),
        )

    def to_object(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "node": self.node,
            "phase": str(self.phase),
            "reason": self.reason,
            "message": self.message,
            "address": self.address,
            "serverName": self.server_name,
            "image": self.image,
            "gpus": [gpu.to_object() for gpu in self.gpus],
            "environments": [each.to_object() for each in self.environments],
            **_given(driver=self.driver or None),
        }


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount in thousandths of GPUs, and in bytes."""

    milli: int = 0
    memory: int = 0

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "Amount":
        return cls(stored.get("milli", 0), int(parse_quantity(stored.get("memory", "0"))))

    def to_object(self) -> dict[str, Any]:
        return {"milli": self.milli, "memory": format_quantity(self.memory)}


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The state of a pool as the operator observed it. Counts and models are computed from the appliances."""

    phase: PoolPhase = PoolPhase.PENDING
    reason: str = "NotSeen"
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    total: Amount = field(default_factory=Amount)
    allocated: Amount = field(default_factory=Amount)
    free: Amount = field(default_factory=Amount)
    appliances: tuple[ApplianceStatus, ...] = ()
    observed_generation: int = 0
    landlock: Landlock | None = None  # None: written by an operator that is older than this field
    pack: PackStatus | None = None  # None: never packed or planned

    @property
    def gpus(self) -> int:
        return sum(len(appliance.gpus) for appliance in self.appliances)

    @property
    def ready(self) -> str:
        """Ready appliances and all appliances, as "1/2": one of two appliances takes new claims."""
        ready = sum(appliance.phase == AppliancePhase.READY for appliance in self.appliances)
        return f"{ready}/{len(self.appliances)}"

    @property
    def models(self) -> str:
        return ", ".join(sorted({gpu.model for appliance in self.appliances for gpu in appliance.gpus})) or "-"

    @property
    def environments(self) -> str:
        """The environments, as "sklearn (cpu), torch (cuda)"; "-" for none."""
        found = {str(each) for appliance in self.appliances for each in appliance.environments}
        return ", ".join(sorted(found)) or "-"

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "PoolStatus":
        return cls(
            phase=PoolPhase(stored.get("phase", PoolPhase.PENDING)),
            reason=stored.get("reason", "NotSeen"),
            message=stored.get("message", ""),
            conditions=tuple(map(Condition.from_object, stored.get("conditions", ()))),
            total=Amount.from_object(stored.get("total", {})),
            allocated=Amount.from_object(stored.get("allocated", {})),
            free=Amount.from_object(stored.get("free", {})),
            appliances=tuple(map(ApplianceStatus.from_object, stored.get("appliances", ()))),
            observed_generation=stored.get("observedGeneration", 0),
            landlock=Landlock(stored["landlock"]) if "landlock" in stored else None,
            pack=PackStatus.from_object(stored["pack"]) if "pack" in stored else None,
        )

    def to_object(self) -> dict[str, Any]:
        return {
            "phase": str(self.phase),
            "reason": self.reason,
            "message": self.message,
            "ready": self.ready,
            "gpus": self.gpus,
            "models": self.models,
            "environments": self.environments,
            "observedGeneration": self.observed_generation,
            **_given(landlock=self.landlock and str(self.landlock), pack=self.pack and self.pack.to_object()),
            "total": self.total.to_object(),
            "allocated": self.allocated.to_object(),
            "free": self.free.to_object(),
            "conditions": [condition.to_object() for condition in self.conditions],
            "appliances": [appliance.to_object() for appliance in self.appliances],
        }


@dataclass(frozen=True, slots=True)
class GPUPool:
    name: str
    uid: str
    generation: int = 0
    resource_version: str = ""
    spec: PoolSpec = field(default_factory=PoolSpec)
    status: PoolStatus = field(default_factory=PoolStatus)
    pack_request: str = ""  # the value of PACK_ANNOTATION

    @property
    def landlock(self) -> Landlock:
        """The spec's value. Without it a new pool requires Landlock, and an older pool keeps its former value."""
        older = Landlock.WARN if self.status.observed_generation else Landlock.REQUIRE
        return self.spec.landlock or self.status.landlock or older

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "GPUPool":
        metadata = stored["metadata"]
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            resource_version=metadata.get("resourceVersion", ""),
            spec=PoolSpec.from_object(stored["spec"]),
            status=PoolStatus.from_object(stored.get("status", {})),
            pack_request=(metadata.get("annotations") or {}).get(PACK_ANNOTATION, ""),
        )


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
