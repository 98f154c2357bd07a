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

# A report that is older than this does not count. The gateway reports usage every second.
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
    """The process of one session: a worker for CUDA calls, or an acceptor for Python (offload)."""

    kind: str  # "worker" or "acceptor"
    pid: int

    def send(self, packet: Packet, fds: Sequence[int] = ()) -> None: ...

    async def wait_until_ready(self) -> None:
        """Waits until the process is ready. Raises ProcessError if it fails to start."""

    async def wait(self) -> int:
        """Waits for the end and reads the last packets. Returns the exit code, negative for a signal."""

    async def end(self, code: int, reason: str) -> None:
        """Asks the process to send its client the error and to exit. Kills it if it does not. Returns after its end."""

    async def kill(self) -> None: ...

    def close(self) -> None:
        """Releases all resources of an ended process."""


@dataclass(frozen=True, slots=True)
class Suspended:
    reason: str
    bytes: int  # size of the images of all sessions
    kept: tuple[int, ...]  # bytes of each GPU that the driver still uses for the sessions


@dataclass(slots=True)
class Busy:
    """The use of a GPU by a lease."""

    total_nanoseconds: int = 0
    part: float = 0.0  # the used part of the time between the last two reports
    heard: float = field(default_factory=time.monotonic)

    def add(self, nanoseconds: int) -> None:
        now = time.monotonic()
        passed, self.heard = now - self.heard, now
        self.total_nanoseconds += nanoseconds
        self.part = min(1.0, nanoseconds / 1e9 / passed) if passed > 0 else self.part

    def percent(self) -> int:
        """The use in the last seconds in percent; 0 without a recent report."""
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
    parts: tuple[int, ...] = ()  # the limit of sessions on each of its GPUs
    since: float = field(default_factory=time.monotonic)
    sessions: "dict[str, Session]" = field(default_factory=dict)
    expiry: asyncio.TimerHandle | None = None
    owner: str = ""  # the holder of the token that opened it
    claim: Claim | None = None  # with a claim, no connection holds the lease, and no client knows its secret
    suspended: Suspended | None = None
    problem: str = ""  # the reason why it could not be suspended or resumed
    resize_problem: str = ""  # the reason why it could not get the size of its claim
    running: asyncio.Event = field(default_factory=asyncio.Event)  # cleared while it is suspended or moving
    busy: list[Busy] = field(default_factory=list)  # for each of its GPUs, if their time is divided
    ended: bool = False  # an ended lease opens no session
    arriving: bool = False  # its sessions are moving here from another appliance
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set when memory is returned or a session ends

    def __post_init__(self) -> None:
        self.running.set()
        self.busy = [Busy() for _ in self.placement.gpus]

    @property
    def used_bytes(self) -> int:
        return sum(quota.used for quota in self.quotas)

    @property
    def host_bytes(self) -> int:
        """The memory of this machine that the sessions hold."""
        return sum(session.host_bytes for session in self.sessions.values())


@dataclass(slots=True, eq=False)
class Session:
    session_id: str
    lease: Lease
    client_pid: int
    process_name: str
    uid: int | None
    pod: str = ""  # in Kubernetes the uid of the client's pod
    since: float = field(default_factory=time.monotonic)
    process: SessionProcess | None = None
    connected: asyncio.Event = field(default_factory=asyncio.Event)  # set when connected or ended
    lost_since: float | None = None  # the time when its connection broke; None while it has one
    hung_up: bool = False  # its client closed a socket of this machine
    client: Client | None = None  # the process of its client, if known
    ended: bool = False
    leaving: bool = False  # its worker has announced its end
    offers: bool = False  # its worker can hand on memory for a moment while it ends
    offers_on: set[int] = field(default_factory=set)  # devices on which the live session can hand on freed memory
    heir: "tuple[Session, int] | None" = None  # the session that gets its memory, and the device
    inherited: dict[int, int] = field(default_factory=dict)  # bytes handed on to it by device, not yet reported
    settling: dict[int, asyncio.Future[None]] = field(default_factory=dict)  # open `settle` requests
    grace_seconds: int = 0  # its lifetime without a connection
    on_gpu: bool = True  # its process has a context on the GPUs of the lease, or may get one
    host_bytes: int = 0  # this machine's memory that its process held at the last measurement
    stats: dict[str, int] = field(default_factory=dict)
    lines: int = 0  # lines that its worker has written to the appliance's log
    complaints: int = 0  # its worker's reports of a broken GPU
    arriving: int = 0  # images of device code that are arriving in the cache
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
