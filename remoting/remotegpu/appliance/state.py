"""Leases and sessions as records. `leases.py` and `sessions.py` change them."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from remotegpu.appliance.allocation import LeasedGpus
from remotegpu.appliance.claims import Claim
from remotegpu.appliance.exports import Exports
from remotegpu.appliance.grants import Quota
from remotegpu.appliance.packets import Packet
from remotegpu.rpc import pb


class SessionProcess(Protocol):
    """What runs for one session, seen from here: a worker for CUDA calls, or an acceptor for Python (offload)."""

    kind: str  # for people
    pid: int

    def send(self, packet: Packet, fds: Sequence[int] = ()) -> None: ...

    async def wait_until_ready(self) -> None:
        """Raises ProcessError if that does not come to pass."""

    async def wait(self) -> int:
        """Its exit code, negative for a signal, once it has ended."""

    async def end(self, code: int, reason: str) -> None:
        """Ask it to tell its client why and to exit; kill it if it does not. Returns when it is gone."""

    async def kill(self) -> None: ...

    def close(self) -> None:
        """It is gone: let go of what is held for it."""


@dataclass(slots=True, eq=False)
class Lease:
    lease_id: str
    secret: str
    client: str
    placement: LeasedGpus
    devices: list[pb.Device]
    quotas: list[Quota]
    exports: Exports
    parts: tuple[int, ...] = ()  # of its GPUs' sessions
    host_bytes: int = 0  # of this machine's memory, when its sessions were last measured
    since: float = field(default_factory=time.monotonic)
    sessions: "dict[str, Session]" = field(default_factory=dict)
    expiry: asyncio.TimerHandle | None = None
    owner: str = ""  # whose token opened it
    claim: Claim | None = None  # then nobody holds it by a connection or knows its secret

    @property
    def used_bytes(self) -> int:
        return sum(quota.used for quota in self.quotas)


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
    connected: bool = False
    lost_since: float | None = None  # since when it has had no connection; None while it has one
    ended: bool = False
    grace_seconds: int = 0  # how long it lives without a connection
    on_gpu: bool = True  # its process has a context on the GPUs of the lease, or may have
    stats: dict[str, int] = field(default_factory=dict)

    @property
    def granted_bytes(self) -> int:
        return sum(quota.granted.get(self.session_id, 0) for quota in self.lease.quotas)

    def used_on(self, device: int) -> int:
        return self.lease.quotas[device].granted.get(self.session_id, 0)
