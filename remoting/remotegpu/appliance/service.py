"""The control service: passes each request to a part, which makes all decisions, and returns the result."""

import asyncio
import contextlib
import functools
import logging
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from remotegpu import __version__
from remotegpu.api.lines import one_line
from remotegpu.appliance.backends.base import Backend
from remotegpu.appliance.gpus.hardware import Hardware
from remotegpu.appliance.leases.authority import Authority, Caller, Tenant
from remotegpu.appliance.leases.inventory import gpus_now, leases_now
from remotegpu.appliance.leases.leases import Leases, Waiting
from remotegpu.appliance.leases.suspension import Suspensions
from remotegpu.appliance.moving.arrivals import Arrivals
from remotegpu.appliance.moving.departures import Departures
from remotegpu.appliance.moving.destinations import Destination, Destinations
from remotegpu.appliance.refusal import RefusalError, Refusals, refused
from remotegpu.appliance.sessions.clients import Client
from remotegpu.appliance.sessions.processes import Launch
from remotegpu.appliance.sessions.returns import in_use, is_going
from remotegpu.appliance.sessions.sessions import SessionRefusedError, Sessions
from remotegpu.appliance.sessions.state import Lease, Session
from remotegpu.appliance.shares.asks import ask_of, compute_of
from remotegpu.appliance.shares.claims import refusal_of_mode
from remotegpu.extensions import Environment, Environments, NoEnvironmentError
from remotegpu.rpc import OLDEST_WIRE, WIRE_VERSION, pb, pb_grpc

_log = logging.getLogger(__name__)

_MAX_NAME = 200
# The time for which OpenSession waits for a suspended lease, before the reply says that the lease is suspended.
_SUSPENDED_SECONDS = 1.0

PROGRAM: Final = f"remotegpu {__version__}"

Context = grpc.aio.ServicerContext[Any, Any]
Request = TypeVar("Request")
Reply = TypeVar("Reply")
Proof = TypeVar("Proof")


def _answering(
    method: Callable[["ControlService", Request, Context], Awaitable[Reply]],
) -> Callable[["ControlService", Request, Context], Awaitable[Reply]]:
    """Wraps a method: a RefusalError becomes the status of the call, and is counted and logged."""

    @functools.wraps(method)
    async def answer(self: "ControlService", request: Request, context: Context) -> Reply:
        try:
            return await method(self, request, context)
        except RefusalError as refusal:
            self.note_refusal(method.__name__, context, refusal)
            await context.abort(refusal.code, refusal.message, refusal.metadata)
            raise AssertionError("abort does not return") from None

    return answer


def _streaming(
    method: Callable[["ControlService", Request, Context], AsyncIterator[Reply]],
) -> Callable[["ControlService", Request, Context], AsyncIterator[Reply]]:
    """Wraps a method with a stream of replies in the same way as `_answering`."""

    @functools.wraps(method)
    async def answer(self: "ControlService", request: Request, context: Context) -> AsyncIterator[Reply]:
        try:
            async for reply in method(self, request, context):
                yield reply
        except RefusalError as refusal:
            self.note_refusal(method.__name__, context, refusal)
            await context.abort(refusal.code, refusal.message, refusal.metadata)

    return answer


class ControlService(pb_grpc.ControlServicer):
    def __init__(
        self,
        *,
        backend: Backend,
        hardware: Hardware,
        leases: Leases,
        sessions: Sessions,
        suspensions: Suspensions,
        arrivals: Arrivals,
        departures: Departures,
        destinations: Destinations,
        environments: Environments,
        authority: Authority,
        name: str,
        tls: bool,
        managed_mib: int | None,
        data_port: Callable[[], int],
        data_socket: str,
        known: Callable[[int], None],
        drain: Callable[[float], int],
        checks: Callable[[], list[pb.Check]],
        unserved: Callable[[], Mapping[str, str] | None],
        refusals: Refusals,
    ) -> None:
        self._backend = backend
        self._hardware = hardware
        self._leases = leases
        self._sessions = sessions
        self._suspensions = suspensions
        self._arrivals = arrivals
        self._departures = departures
        self._destinations = destinations
        self._environments = environments
        self._authority = authority
        self._name = name
        self._tls = tls
        self._managed_mib = managed_mib
        self._data_port = data_port
        self._data_socket = data_socket
        self._known = known
        self._drain = drain
        self._checks = checks
        self._unserved = unserved
        self._refusals = refusals
        self._versions = pb.Versions(
            wire=WIRE_VERSION,
            oldest=OLDEST_WIRE,
            table_hash=hardware.snapshot.table_hash,
            program=PROGRAM,
        )

    @_answering
    async def Hello(self, request: pb.HelloRequest, context: Context) -> pb.HelloReply:  # noqa: N802
        reply = pb.HelloReply(
            versions=self._versions,
            driver_version=self._hardware.snapshot.driver_version,
            driver_release=self._backend.driver_release,
            data_port=self._data_port(),
            refusal=refusal_of_versions(self._versions, request.versions),
            tls=self._tls,
            managed_mib=self._managed_mib,
        )
        if reply.refusal:
            self.note_refusal("Hello", context, refused(reply.refusal))
        elif request.lease_id:
            reply.devices.extend((await self._tenant("Hello", request, context)).lease.devices)
            # Only a tenant learns the installed packages.
            reply.environments.extend(self._environments_now())
        return reply

    @_streaming
    async def OpenLease(  # noqa: N802
        self, request: pb.OpenLeaseRequest, context: Context
    ) -> AsyncIterator[pb.OpenLeaseReply]:
        caller = _caller("OpenLease", context)
        owner = await self._proven(caller, self._authority.borrower(caller))
        self._require_versions(request.versions)
        ask = ask_of(request.count, request.milli, request.memory_bytes)
        ask = replace(ask, compute=compute_of(request.compute_milli, request.compute_limit_milli))
        async for event in self._leases.open(ask, one_line(request.client, _MAX_NAME), owner, wait=request.wait):
            yield self._lease_event(event)

    @_answering
    async def CloseLease(self, request: pb.CloseLeaseRequest, context: Context) -> pb.CloseLeaseReply:  # noqa: N802
        caller = _caller("CloseLease", context)
        lease = await self._proven(caller, self._authority.owner(caller, request.lease_id, request.lease_secret))
        if ending := self._leases.end(lease.lease_id, "closed by its holder"):
            # Replies when the share is free, so that the next caller can have it. Ends also if the caller leaves.
            await asyncio.shield(ending)
        return pb.CloseLeaseReply()

    @_streaming
    async def SuspendLease(  # noqa: N802
        self, request: pb.SuspendLeaseRequest, context: Context
    ) -> AsyncIterator[pb.Progress]:
        lease, owner = await self._seen("SuspendLease", request.lease_id, context)
        who = _named_caller(owner)
        _log.info("audit: %s suspends lease %s (%s)", who, lease.lease_id[:8], lease.client)
        async for event in _progress(self._suspensions.suspend(lease, f"by {who}")):
            yield event

    @_streaming
    async def ResumeLease(  # noqa: N802
        self, request: pb.ResumeLeaseRequest, context: Context
    ) -> AsyncIterator[pb.Progress]:
        lease, owner = await self._seen("ResumeLease", request.lease_id, context)
        who = _named_caller(owner)
        _log.info("audit: %s resumes lease %s (%s)", who, lease.lease_id[:8], lease.client)
        async for event in _progress(self._suspensions.resume(lease)):
            yield event

    @_answering
    async def ResizeLease(self, request: pb.ResizeLeaseRequest, context: Context) -> pb.ResizeLeaseReply:  # noqa: N802
        lease, owner = await self._seen("ResizeLease", request.lease_id, context)
        before = lease.placement.sizes[0]
        ask = ask_of(len(lease.placement.gpus), request.milli, request.memory_bytes)
        self._leases.resize(lease, self._leases.sizes(lease, ask))
        after = lease.placement.sizes[0]
        _log.info(
            "audit: %s resizes lease %s from %d to %d bytes", _named_caller(owner), lease.lease_id[:8], before, after
        )
        return pb.ResizeLeaseReply(before_bytes=before, memory_bytes=after)

    @_answering
    async def InviteLease(self, request: pb.InviteLeaseRequest, context: Context) -> pb.InviteLeaseReply:  # noqa: N802
        caller = _caller("InviteLease", context)
        owner = await self._proven(caller, self._authority.host(caller, request.lease_id))
        return pb.InviteLeaseReply(invitation=self._arrivals.invite(owner, request.lease_id))

    @_answering
    async def ReceiveLease(  # noqa: N802
        self, request: pb.ReceiveLeaseRequest, context: Context
    ) -> pb.ReceiveLeaseReply:
        caller = _caller("ReceiveLease", context)
        arrival = await self._proven(caller, self._arrivals.invited(request.invitation))
        self._require_versions(request.versions)
        tickets = await self._arrivals.receive(arrival, request)
        return pb.ReceiveLeaseReply(data_port=self._data_port(), tickets=tickets)

    @_answering
    async def SettleLease(self, request: pb.SettleLeaseRequest, context: Context) -> pb.SettleLeaseReply:  # noqa: N802
        caller = _caller("SettleLease", context)
        arrival = await self._proven(caller, self._arrivals.invited(request.invitation))
        await self._arrivals.settle(arrival, keep=request.keep)
        return pb.SettleLeaseReply()

    @_streaming
    async def MoveLease(self, request: pb.MoveLeaseRequest, context: Context) -> AsyncIterator[pb.Progress]:  # noqa: N802
        lease, owner = await self._seen("MoveLease", request.lease_id, context, claimed=True)
        to = Destination(request.to, request.invitation, request.ca, request.server_name)
        to.check()
        self._destinations.check(to, owner)
        who, where = _named_caller(owner), to.endpoint
        _log.info("audit: %s moves lease %s (%s) to %s", who, lease.lease_id[:8], lease.client, where)
        async for event in _progress(self._departures.move(lease, to)):
            yield event

    @_answering
    async def OpenSession(self, request: pb.OpenSessionRequest, context: Context) -> pb.OpenSessionReply:  # noqa: N802
        reply = await self._open_session(request, context)
        if reply.refusal:
            self.note_refusal("OpenSession", context, refused(reply.refusal))
        return reply

    async def _open_session(self, request: pb.OpenSessionRequest, context: Context) -> pb.OpenSessionReply:
        if refusal := refusal_of_versions(self._versions, request.versions):
            return pb.OpenSessionReply(refusal=refusal)
        tenant = await self._tenant("OpenSession", request, context)
        offload = request.HasField("offload")
        if offload and request.versions.wire != self._versions.wire:
            named = f"the appliance is {_named(self._versions)}, the client is {_named(request.versions)}"
            refusal = f"offload needs one version on both ends: {named}; install the same one on both"
        elif tenant.acceptor:
            refusal = "a session of offload opens no other: open it in the program" if offload else ""
        else:
            refusal = refusal_of_mode(tenant.lease.claim, offload=offload)
        if refusal:
            return pb.OpenSessionReply(refusal=refusal)
        if not tenant.lease.running.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SUSPENDED_SECONDS):
                    await tenant.lease.running.wait()
            if not tenant.lease.running.is_set():
                # The client then waits until the lease is resumed.
                reason = tenant.lease.suspended.reason if tenant.lease.suspended else "this moment"
                return pb.OpenSessionReply(suspended=reason)
            if self._leases.by_id(tenant.lease.lease_id) is None:
                return pb.OpenSessionReply(refusal="the lease has ended: start the program again under `remotegpu run`")
        name = one_line(request.process_name, _MAX_NAME)
        environment, launch = None, None
        try:
            if offload:
                environment, launch = choose_environment(self._environments, request.offload)
            session, ticket = await self._sessions.open(
                tenant.lease,
                request.pid,
                name,
                tenant.pod,
                launch,
                acceptor=tenant.acceptor,
                client=None if offload else Client.of(request.pid, request.process),
            )
        except (SessionRefusedError, NoEnvironmentError) as error:
            return pb.OpenSessionReply(refusal=str(error))
        return pb.OpenSessionReply(
            session_id=session.session_id,
            ticket=ticket,
            data_port=self._data_port(),
            data_socket=self._data_socket,
            grace_seconds=session.grace_seconds,
            wire=min(self._versions.wire, request.versions.wire),
            environment=pb.Environment(**environment.to_dict()) if environment else None,
            # Neighbours are CUDA clients; a session of offload has none.
            neighbours=[] if offload else _neighbours(session),
        )

    @_answering
    async def CloseSession(  # noqa: N802
        self, request: pb.CloseSessionRequest, context: Context
    ) -> pb.CloseSessionReply:
        session = self._sessions.find(request.session_id, ended=True)
        if session is None:
            return pb.CloseSessionReply()
        caller = _caller("CloseSession", context)
        await self._proven(caller, self._authority.closer(caller, session, request.lease_secret))
        if request.client_ended:
            self._sessions.client_has_ended(session)
            return pb.CloseSessionReply()
        return pb.CloseSessionReply(exit_code=await self._sessions.close(session))

    @_answering
    async def DeviceState(self, request: pb.DeviceStateRequest, context: Context) -> pb.DeviceStateReply:  # noqa: N802
        lease = (await self._tenant("DeviceState", request, context)).lease
        uuids = [device.gpu_uuid for device in lease.devices]
        readings = await asyncio.gather(*(asyncio.to_thread(self._backend.readings, uuid) for uuid in uuids))
        await self._sessions.settle(lease)
        reply = pb.DeviceStateReply()
        divides_time = self._leases.allocator.divides_time
        for device, (quota, now, busy) in enumerate(zip(lease.quotas, readings, lease.busy, strict=True)):
            reply.devices.append(
                pb.DeviceState(
                    memory_used_bytes=in_use(lease, device),
                    memory_bytes=quota.limit,
                    # The share's own use, which is known only if time is divided; else the use of the whole GPU.
                    gpu_utilization_percent=busy.percent() if divides_time else now.gpu_utilization_percent,
                    memory_utilization_percent=now.memory_utilization_percent,
                    temperature_celsius=now.temperature_celsius,
                    power_milliwatt=now.power_milliwatt,
                    power_limit_milliwatt=now.power_limit_milliwatt,
                    sm_clock_mhz=now.sm_clock_mhz,
                    memory_clock_mhz=now.memory_clock_mhz,
                    pcie_generation=now.pcie_generation,
                    pcie_width=now.pcie_width,
                    pcie_max_generation=now.pcie_max_generation,
                    pcie_max_width=now.pcie_max_width,
                    processes=[
                        pb.Process(pid=s.client_pid, name=s.process_name, memory_bytes=s.used_on(device))
                        for s in lease.sessions.values()
                        if not is_going(s)
                    ],
                )
            )
        return reply

    @_answering
    async def Inventory(self, _request: pb.InventoryRequest, context: Context) -> pb.InventoryReply:  # noqa: N802
        return self.inventory(await self._onlooker("Inventory", context))

    @_answering
    async def Health(self, _request: pb.HealthRequest, context: Context) -> pb.HealthReply:  # noqa: N802
        await self._onlooker("Health", context)
        checks = self._checks()
        return pb.HealthReply(ready=all(check.status != "fail" for check in checks), checks=checks)

    @_answering
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:  # noqa: N802
        caller = _caller("Drain", context)
        await self._proven(caller, self._authority.administrator(caller))
        return pb.DrainReply(sessions=self._drain(request.deadline_seconds))

    def note_refusal(self, method: str, context: Context, refusal: RefusalError) -> None:
        self._refusals.note(method, peer_and_connection(context.peer())[0], refusal)

    def inventory(self, owner: str | None = None) -> pb.InventoryReply:
        """Returns the current inventory, with the leases of `owner`; None: all leases. Any thread may call it."""
        gpus = self._hardware.snapshot.gpus
        live = self._leases.all()
        allocator = self._leases.allocator
        # Only an administrator, as the operator is, learns of other tenants' claims.
        unserved = self._unserved() if owner is None else {}
        leases = leases_now(live, gpus, allocator)
        return pb.InventoryReply(
            gpus=gpus_now(gpus, allocator, leases),
            leases=[now for lease, now in zip(live, leases, strict=True) if owner is None or lease.owner == owner],
            versions=self._versions,
            driver_version=self._hardware.snapshot.driver_version,
            backend=self._backend.name,
            draining=self._leases.draining,
            opens_no_session=self._leases.shortage(),
            unserved=[pb.Unserved(lease_id=each, why=why) for each, why in (unserved or {}).items()],
            claims_unknown=unserved is None,
            appliance=self._name,
            environments=self._environments_now(),
            compute_mode="turns" if allocator.divides_time else "shared",
        )

    def _environments_now(self) -> list[pb.Environment]:
        return [pb.Environment(**environment.to_dict()) for environment in self._environments.alive()]

    def _lease_event(self, event: Waiting | Lease) -> pb.OpenLeaseReply:
        if isinstance(event, Waiting):
            waiting = pb.Waiting(reason=event.reason, ahead=event.ahead, seconds=event.seconds)
            return pb.OpenLeaseReply(waiting=waiting)
        granted = pb.Granted(
            lease_id=event.lease_id,
            lease_secret=event.secret,
            devices=event.devices,
            data_port=self._data_port(),
            grace_seconds=self._leases.grace_seconds,
        )
        return pb.OpenLeaseReply(granted=granted)

    async def _tenant(
        self, method: str, request: pb.HelloRequest | pb.OpenSessionRequest | pb.DeviceStateRequest, context: Context
    ) -> Tenant:
        caller = _caller(method, context)
        return await self._proven(caller, self._authority.tenant(caller, request.lease_id, request.lease_secret))

    async def _seen(
        self, method: str, lease_id: str, context: Context, *, claimed: bool = False
    ) -> tuple[Lease, str | None]:
        """Returns a lease and the name of the caller, None for an administrator.

        Raises RefusalError if the caller may not see the lease, or if it belongs to a claim and not `claimed`.
        """
        owner = await self._onlooker(method, context)
        lease = self._leases.by_id(lease_id)
        if lease is None or owner not in (None, lease.owner):
            message = "no such lease, or not yours: `remotegpu smi` lists them"
            raise RefusalError(grpc.StatusCode.NOT_FOUND, message)
        if lease.claim is not None and not claimed:
            message = f"it is the lease of claim {lease.claim}: change the GPUClaim instead"
            raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, message)
        return lease, owner

    async def _onlooker(self, method: str, context: Context) -> str | None:
        caller = _caller(method, context)
        return await self._proven(caller, self._authority.onlooker(caller))

    async def _proven(self, caller: Caller, proof: Awaitable[Proof]) -> Proof:
        """Awaits `proof`, a check of permission. If it succeeds, marks the connection as authenticated."""
        proven = await proof
        if caller.connection is not None:
            self._known(caller.connection)
        return proven

    def _require_versions(self, theirs: pb.Versions) -> None:
        if refusal := refusal_of_versions(self._versions, theirs):
            raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, refusal)


async def _progress(events: AsyncIterator[Waiting | int]) -> AsyncIterator[pb.Progress]:
    since = time.monotonic()
    async for event in events:
        if isinstance(event, Waiting):
            waiting = pb.Waiting(reason=event.reason, ahead=event.ahead, seconds=event.seconds)
            yield pb.Progress(waiting=waiting)
        else:
            yield pb.Progress(done=pb.Done(image_bytes=event, seconds=time.monotonic() - since))


def _neighbours(session: Session) -> list[pb.Neighbour]:
    """Returns the other sessions of this lease and pod whose clients can check whether this session's client is alive.

    Those clients report the same PID namespace as this client. Sessions that are ending are left out.
    """
    return [
        pb.Neighbour(session_id=other.session_id, pid=other.client.pid, process=other.client.name)
        for other in session.lease.sessions.values()
        if other is not session and other.pod == session.pod and other.client is not None
        if other.client.sees(session.client) and not is_going(other)
    ]


def _named_caller(owner: str | None) -> str:
    """Returns the caller's name for log lines."""
    return "an administrator" if owner is None else owner


def _caller(method: str, context: Context) -> Caller:
    token = ""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
            token = value.removeprefix("Bearer ").strip()
    peer, connection = peer_and_connection(context.peer())
    return Caller(method, peer, token, connection)


def peer_and_connection(name: str) -> tuple[str, int | None]:
    """Returns a caller's address, and the gateway's number of the connection; None if it did not use the gateway.

    `name` is gRPC's name of the peer: the gateway's end of the Unix socket, `unix-abstract:.../NUMBER/ADDRESS`.
    """
    parts = urllib.parse.unquote(name).rsplit("/", 2)
    if name.startswith("unix-abstract:") and len(parts) == len(("where", "number", "address")) and parts[1].isdigit():
        return parts[2], int(parts[1])
    return name, None


def refusal_of_versions(ours: pb.Versions, theirs: pb.Versions) -> str:
    """Returns an error if both ends have no common version of the wire; empty if they have one.

    If both have the same newest version, their function tables must be equal too. A table hash of 0 means a client that
    sends no frames, such as the CLI.
    """
    if ours.wire == theirs.wire:
        fits = not (ours.table_hash and theirs.table_hash) or ours.table_hash == theirs.table_hash
        what = "install the same build on both ends"
    else:
        fits = min(ours.wire, theirs.wire) >= max(_oldest(ours), _oldest(theirs))
        what = f"upgrade the {'client' if theirs.wire < ours.wire else 'appliance'}"
    if fits:
        return ""
    return f"versions do not fit: the appliance is {_named(ours)}, the client is {_named(theirs)}; {what}"


def _oldest(versions: pb.Versions) -> int:
    return versions.oldest or versions.wire


def _named(versions: pb.Versions) -> str:
    wire = f"wire {_oldest(versions)} to {versions.wire}"
    return f"{versions.program or 'unnamed'} ({wire}, table {versions.table_hash:016x})"


def choose_environment(environments: Environments, wish: pb.Offload) -> tuple[Environment, Launch]:
    """Chooses the environment for a session. Raises NoEnvironmentError."""
    theirs = {"python": wish.python, **wish.packages}
    return environments.choose(wish.environment, wish.backends, theirs, allow_skew=wish.allow_skew)
