"""The settings of an appliance, chosen by the person who starts it."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from remotegpu.api.modes import ComputeMode, Landlock, Profile, WorkerWrites
from remotegpu.appliance.machine.images import ImageRoom
from remotegpu.appliance.machine.room import own_room


def physical_bytes() -> int:
    """Returns the memory of this machine, or our container's limit if that is lower."""
    whole, room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), own_room()
    return whole if room is None else min(whole, room.limit)


def default_code_cache_bytes() -> int:
    return min(1 << 30, physical_bytes() // 32)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that keep one tenant from taking all of a resource other than GPU memory."""

    leases: int = 256
    sessions_per_lease: int = 64
    sessions_per_gpu: int = 128
    sessions_per_tenant: int | None = None  # limit for one namespace or token; None: as many as its leases have
    image_bytes: int = 1 << 30  # device code that a worker keeps
    session_budgets: tuple[str, ...] = ()  # NAME=NUMBER, as `budgets.py` lists them
    host_bytes_per_lease: int | None = None  # memory of this machine; None: half of it
    host_bytes_per_tenant: int | None = None  # limit for one namespace or token; None: three quarters
    managed_mib: int | None = None  # for a program that sets nothing itself; None: the client's default


def default_sessions_per_gpu(backend: str) -> int:
    """Returns a default. On a real GPU each allowed session reserves memory for a context, today half a gigabyte."""
    return 16 if backend == "cuda" else 128


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """An appliance that serves claims."""

    name: str
    operator: str  # NAMESPACE:NAME of its service account
    pool: str = ""  # it accepts the tokens of this pool's pods
    believe_seconds: float = 3600.0  # an identity, while the API server does not answer


@dataclass(frozen=True, slots=True)
class EnvironmentOption:
    """An interpreter for offload sessions."""

    name: str
    python: Path  # not resolved: the link inside a virtual environment identifies it
    backend: str = ""  # empty: the environment finds out
    # CUDA without client and worker: sessions open the devices themselves, and no limit of the share is enforced.
    direct: bool = False
    # Sessions open the devices themselves, and each has every GPU of the appliance as a whole. ROCm and XPU need it.
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 7070
    data_port: int | None = None  # None: the control port + 1
    http: tuple[str, int] | None = None  # /healthz, /readyz, /metrics; None: none
    dashboard: tuple[str, int] | None = None  # the page; None: none
    backend: str = "software"
    gpus: int = 1
    memory_bytes: int = 8 << 30
    profile: Profile = Profile.NORMAL
    threads: int | None = None
    driver: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    local_sockets: Path | None = None  # a folder that programs of this machine see too, at the same path
    tokens: Path | None = None
    anybody: bool = False  # without `tokens` no token is asked for, not even the appliance's own
    kubernetes: Kubernetes | None = None
    drain_seconds: float = 20.0
    grace_seconds: int = 60  # sessions and leases without a connection; 0: they end with it
    images: ImageRoom = field(default_factory=lambda: ImageRoom(physical_bytes() // 4))  # for suspended leases
    warm_contexts: bool = False  # a spare worker with a context for each GPU
    code_cache_bytes: int = field(default_factory=default_code_cache_bytes)  # 0: no code is kept for later sessions
    public_code: str | None = None  # the tenant (namespace or token's name) whose code sessions of all others may have
    move_bytes_per_second: int | None = None  # for a lease that moves to another appliance; None: no limit
    move_to: tuple[str, ...] = ()  # appliances to which users have their leases move; "any": all
    uid_base: int | None = None  # None: a block that no other appliance of this machine has
    landlock: Landlock = Landlock.REQUIRE
    worker_writes: WorkerWrites = WorkerWrites.ANYWHERE
    compute_mode: ComputeMode = ComputeMode.SHARED
    require_cgroup: bool = False  # refuse to start where the kernel limits no session's memory
    self_test: bool = True
    limits: Limits = field(default_factory=Limits)
    offload: tuple[EnvironmentOption, ...] = ()
    readable: tuple[Path, ...] = ()  # readable for sessions of offload, besides their interpreters' files
    offload_memory_bytes: int | None = None  # memory of the machine for each acceptor; None: half of it
    quiet: bool = False
    ready_fd: int | None = None
    parent_fd: int | None = None
