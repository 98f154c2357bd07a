"""Records of leases and sessions. `leases.py` and `sessions.py` change them."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from remotegpu.appliance._generated import worker_requests as requests
from remotegpu.appliance.machine.images import ImageFile
from remotegpu.appliance.packets import Packet
from remotegpu.appliance.sessions.clients import Client
from remotegpu.appliance.sessions.exports import Exports
from remotegpu.appliance.shares.allocation import LeasedGpus
from remotegpu.appliance.shares.claims import Claim
from remotegpu.appliance.shares.grants import Quota
from remotegpu.rpc import pb

# The gateway reports usage every second.
_BUSY_SECONDS: Final = 2.5

# A worker's answer to the order to suspend, resume or move its session.
Answer = (
    requests.Suspended
    | requests.NotSuspended
    | requests.Resumed
    | requests.NotResumed
    | requests.Ahead
    | requests.Moved
    | requests.NotMoved
    | requests.Adopted
)


class SessionProcess(Protocol):
    """The process of one session, seen from here: a worker for CUDA calls, or an acceptor for Python (offload)."""

    kind: str  # for people
    pid: int

    def send(self, packet: Packet, fds: Sequence[int] = ()) -> None: ...

    async def wait_until_ready(self) -> None:
        """Waits until the process is ready. Raises ProcessError if it does not get ready."""

    async def wait(self) -> int:
        """Returns its exit code, negative for a signal, once it has ended and its last packets were read."""

    async def end(self, code: int, reason: str) -> None:
        """Asks it to tell its client why and to exit; kills it if it does not. Returns when it is gone."""

    async def kill(self) -> None: ...

    def close(self) -> None:
        """Releases all resources of an ended process."""


@dataclass(frozen=True, slots=True)
class Suspended:
    reason: str
    bytes: int  # size of its sessions' images
    kept: tuple[int, ...]  # bytes of each GPU that the driver keeps for its sessions


@dataclass(slots=True)
class Busy:
    """A lease's use of a GPU."""

    total_nanoseconds: int = 0
    part: float = 0.0  # used part of the time between the last two reports
    heard: float = field(default_factory=time.monotonic)

    def add(self, nanoseconds: int) -> None:
        now = time.monotonic()
        passed, self.heard = now - self.heard, now
        self.total_nanoseconds += nanoseconds
        self.part = min(1.0, nanoseconds / 1e9 / passed) if passed > 0 else self.part

    def percent(self) -> int:
        """The use in the last seconds; 0 if nothing was reported."""
        return 0 if time.monotonic() - self.heard > _BUSY_SECONDS else round(100 * self.part)


@dataclass(slots=True, eq=False)
class Lease:
    lease_id: str
    secret: str
    client: str
    placement: LeasedGpus
    devices: list[pb.Device]
    quotas: list[Quota]
    exports: Exports
    parts: tuple[int, ...] = ()  # the most sessions on each of its GPUs
    since: float = field(default_factory=time.monotonic)
    sessions: "dict[str, Session]" = field(default_factory=dict)
    expiry: asyncio.TimerHandle | None = None
    owner: str = ""  # the holder of the token that opened it
    claim: Claim | None = None  # then no connection holds it, and no client knows its secret
    suspended: Suspended | None = None
    problem: str = ""  # why it could not be suspended or resumed
    resize_problem: str = ""  # why it has not the size that its claim says
    running: asyncio.Event = field(default_factory=asyncio.Event)  # not while it is suspended: it opens no session then
    busy: list[Busy] = field(default_factory=list)  # for each of its GPUs, if their time is divided
    ended: bool = False  # it opens no session any more
    arriving: bool = False  # its sessions are on their way from another appliance
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # when memory comes back, or a session goes

    def __post_init__(self) -> None:
        self.running.set()
        self.busy = [Busy() for _ in self.placement.gpus]

    @property
    def used_bytes(self) -> int:
        return sum(quota.used for quota in self.quotas)

    @property
    def host_bytes(self) -> int:
        """The sessions' memory of this machine."""
        return sum(session.host_bytes for session in self.sessions.values())


@dataclass(slots=True, eq=False)
class Session:
    session_id: str
    lease: Lease
    client_pid: int
    process_name: str
    uid: int | None
    pod: str = ""  # uid of the pod whose process it is, in Kubernetes
    since: float = field(default_factory=time.monotonic)
    process: SessionProcess | None = None
    connected: asyncio.Event = field(default_factory=asyncio.Event)  # its client came, or it is gone
    lost_since: float | None = None  # since when it has had no connection; None while it has one
    hung_up: bool = False  # its client, on this machine, closed the socket
    client: Client | None = None  # its client's process, where that is known
    ended: bool = False
    leaving: bool = False  # its worker says that it ends
    offers: bool = False  # its worker hands on memory for a moment while it ends
    offers_on: set[int] = field(default_factory=set)  # devices: a living session hands on memory that it returned
    heir: "tuple[Session, int] | None" = None  # the session that it shall hand memory on to, and the device
    inherited: dict[int, int] = field(default_factory=dict)  # by device: memory that it got so and was not told of
    settling: dict[int, asyncio.Future[None]] = field(default_factory=dict)  # open requests to report returned memory
    grace_seconds: int = 0  # how long it lives without a connection
    on_gpu: bool = True  # its process has a context on the GPUs of the lease, or may have
    host_bytes: int = 0  # this machine's memory that its process held at the last look
    stats: dict[str, int] = field(default_factory=dict)
    lines: int = 0  # lines that it has written to the appliance's log
    complaints: int = 0  # how often it said that a GPU is broken
    arriving: int = 0  # images of its code that are on their way
    questions: int = 0  # unanswered questions of its worker
    answer: asyncio.Future[Answer | None] | None = None  # the worker's answer to the last request
    image: ImageFile | None = None  # its GPU memory, while its lease is suspended
    kept: tuple[int, ...] = ()  # bytes of each GPU that the driver keeps meanwhile

    def __post_init__(self) -> None:
        self.kept = (0,) * len(self.lease.quotas)

    @property
    def granted_bytes(self) -> int:
        return sum(quota.granted.get(self.session_id, 0) for quota in self.lease.quotas)

    def used_on(self, device: int) -> int:
        return self.lease.quotas[device].granted.get(self.session_id, 0)
