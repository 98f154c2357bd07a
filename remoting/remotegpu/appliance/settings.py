"""The settings of an appliance, chosen by the person who starts it."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from remotegpu.api.modes import ComputeMode, Landlock, Profile, WorkerWrites
from remotegpu.appliance.machine.images import ImageRoom
from remotegpu.appliance.machine.room import own_room


def physical_bytes() -> int:
    """Returns the bytes of this machine's memory, or the limit of the appliance's container if that is lower."""
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
    sessions_per_tenant: int | None = None  # limit for one namespace or token; None: only the limits of its leases
    image_bytes: int = 1 << 30  # limit of the device code that a worker stores
    session_budgets: tuple[str, ...] = ()  # NAME=NUMBER with names of `budgets.py`
    host_bytes_per_lease: int | None = None  # memory of this machine; None: half of it
    host_bytes_per_tenant: int | None = None  # limit for one namespace or token; None: three quarters
    managed_mib: int | None = None  # managed memory of a program that does not set it; None: the client's default


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """Settings of an appliance that serves claims."""

    name: str
    operator: str  # NAMESPACE:NAME of its service account
    pool: str = ""  # the pool whose pods' tokens it accepts
    believe_seconds: float = 3600.0  # time for which an identity is trusted without the API server


@dataclass(frozen=True, slots=True)
class EnvironmentOption:
    """An interpreter for offload sessions."""

    name: str
    python: Path  # with links: the link in a virtual environment identifies the environment
    backend: str = ""  # empty: the backend that the environment finds
    # CUDA without client and worker: sessions open the devices themselves, and no limit of the share is enforced.
    direct: bool = False
    # Sessions open the devices themselves, and a session has all GPUs of the appliance alone. Needed for ROCm and XPU.
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
    local_sockets: Path | None = None  # a folder that programs of this machine have at the same path
    tokens: Path | None = None
    anybody: bool = False  # without `tokens`, no token is needed, not even the appliance's own
    kubernetes: Kubernetes | None = None
    drain_seconds: float = 20.0
    grace_seconds: int = 60  # lifetime of sessions and leases without a connection
    images: ImageRoom = field(default_factory=lambda: ImageRoom(physical_bytes() // 4))  # for suspended leases
    warm_contexts: bool = False  # a spare worker with a context for each GPU
    code_cache_bytes: int = field(default_factory=default_code_cache_bytes)  # 0: no cache
    public_code: str | None = None  # the tenant (namespace or token's name) whose code all may use
    move_bytes_per_second: int | None = None  # limit of one lease that moves away; None: no limit
    move_to: tuple[str, ...] = ()  # appliances to which users may move their leases; "any": all
    uid_base: int | None = None  # None: a block that no other appliance of this machine has
    landlock: Landlock = Landlock.REQUIRE
    worker_writes: WorkerWrites = WorkerWrites.ANYWHERE
    compute_mode: ComputeMode = ComputeMode.SHARED
    require_cgroup: bool = False  # refuse to start without a cgroup that limits memory
    self_test: bool = True
    limits: Limits = field(default_factory=Limits)
    offload: tuple[EnvironmentOption, ...] = ()
    readable: tuple[Path, ...] = ()  # paths that offload sessions may read, besides their interpreter
    offload_memory_bytes: int | None = None  # memory of the machine for each acceptor; None: half of it
    quiet: bool = False
    ready_fd: int | None = None
    parent_fd: int | None = None
