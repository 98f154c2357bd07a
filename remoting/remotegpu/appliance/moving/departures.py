"""Moves leases to another appliance, in two phases.

First the other appliance rebuilds the sessions; at the end of this phase they are paused here. Then either the lease is
settled at the other appliance, or the sessions continue here as before.
"""

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import grpc

from remotegpu.api.failures import ApplianceError
from remotegpu.api.lines import one_line
from remotegpu.appliance._generated import worker_orders as orders
from remotegpu.appliance._generated.worker_requests import Ahead, Moved, NotMoved
from remotegpu.appliance.gateway import Gateway
from remotegpu.appliance.gpus.hardware import Snapshot
from remotegpu.appliance.leases.leases import Leases, Waiting
from remotegpu.appliance.leases.suspension import Bytes, Suspensions
from remotegpu.appliance.moving.destinations import SECRET, Destination
from remotegpu.appliance.refusal import RefusalError, refused
from remotegpu.appliance.sessions.budgets import tenant_of
from remotegpu.appliance.sessions.sessions import DRAIN_SECONDS, Sessions
from remotegpu.appliance.sessions.state import Answer, Lease, Session
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, Endpoint, parse_endpoint

_log = logging.getLogger(__name__)

# Long enough for the other appliance to start workers, or to wait for all data.
_CALL_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 5.0
_MOST_REASON: Final = 500
# The time limit of precopy, which sends memory while the program runs: 4 TiB at 1 GiB/s, 40 GiB at 10 MiB/s.
_AHEAD_SECONDS: Final = 4096.0
_READ_BYTES: Final = 256 << 10
# A socket option in bytes per second (socket(7) of Linux 4.13). Python has no name for it.
_SO_MAX_PACING_RATE: Final = 47
_MOST_PORT: Final = 65535
# Concurrent moves of one user, and threads of all moves: each call to another appliance blocks a thread.
_MOST_OF_ONE: Final = 8
_THREADS: Final = ThreadPoolExecutor(64, "move")

_T = TypeVar("_T")


class Departures:
    def __init__(
        self,
        leases: Leases,
        sessions: Sessions,
        suspensions: Suspensions,
        gateway: Gateway,
        snapshot: Snapshot,
        bytes_per_second: int | None,
    ) -> None:
        """Starts without moves. `bytes_per_second` limits the rate of one lease; None: no limit."""
        self._bytes_per_second = bytes_per_second
        self._leases = leases
        self._sessions = sessions
        self._suspensions = suspensions
        self._gateway = gateway
        self._snapshot = snapshot
        # The number of moving leases of each tenant.
        self._moving: Counter[str] = Counter()

    async def move(self, lease: Lease, to: Destination) -> AsyncIterator[Waiting | Bytes]:
        """Moves a lease. Yields its progress once a second, and at last the number of sent bytes of memory.

        Continues if the caller leaves. Raises RefusalError, and then leaves the lease here as it was.
        """
        async for event in self._suspensions.follow(lease, self._move(lease, to), "its work completes and is copied"):
            yield event

    async def _move(self, lease: Lease, to: Destination) -> Bytes:
        runs, tenant = lease.suspended is None, tenant_of(lease)
        # In Kubernetes the operator limits moves instead.
        if self._moving[tenant] >= _MOST_OF_ONE and lease.claim is None:
            message = f"{_MOST_OF_ONE} leases of yours move already: try again when one is there"
            raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        self._moving[tenant] += 1
        lease.running.clear()
        try:
            with _authority(to) as access:
                return await self._move_with(lease, to, access)
        except ApplianceError as error:
            raise refused(f"{error}; it stays here") from None
        finally:
            self._moving[tenant] -= 1
            if runs:
                lease.running.set()

    async def _move_with(self, lease: Lease, to: Destination, access: Access) -> Bytes:
        other = ApplianceClient(parse_endpoint(to.endpoint), access, _CALL_SECONDS)
        workers = await self._suspensions.workers(lease)
        if any(not self._gateway.ticket(session.session_id) for session in workers):
            raise refused("NoGrace: this appliance keeps no session without a connection (--grace 0s); it stays here")
        try:
            place = await _aside(other.receive_lease, self._described(lease, workers, to.invitation))
            try:
                if len(place.tickets) != len(workers) or not all(map(SECRET.fullmatch, place.tickets)):
                    raise refused(f"NoAppliance: {to.endpoint} answers with something else than tickets; it stays here")
                if not 0 < place.data_port <= _MOST_PORT:
                    raise refused(f"NoAppliance: {to.endpoint} answers with no data port; it stays here")
                paused, answers = await self._send_all(workers, other, place)
            except BaseException:
                # Frees the share at the destination at once, before the invitation expires.
                with contextlib.suppress(ApplianceError):
                    await _aside(other.settle_lease, to.invitation, keep=False)
                raise
            await self._settle(other, to.invitation, workers, answers)
        finally:
            other.close()
        where = {"endpoint": to.endpoint, "data_port": place.data_port, "server_name": to.server_name or None}
        text = json.dumps(where)
        for session in workers:
            self._gateway.moved(session.session_id, self._gateway.ticket(session.session_id), text)
        # The clients must learn the new place before their workers end.
        await self._gateway.synced()
        for session in workers:
            self._sessions.leave(session)
        self._leases.moved(lease, text)
        seconds = time.monotonic() - paused
        _log.info("lease %s has moved to %s: it stood still for %.2f s", lease.lease_id[:8], to.endpoint, seconds)
        return sum(answer.bytes for answer in answers if isinstance(answer, Moved))

    def _described(self, lease: Lease, workers: list[Session], invitation: str) -> pb.ReceiveLeaseRequest:
        return pb.ReceiveLeaseRequest(
            invitation=invitation,
            driver_version=self._snapshot.driver_version,
            lease_id=lease.lease_id,
            lease_secret=lease.secret,
            client=lease.client,
            devices=lease.devices,
            compute_milli=lease.placement.compute.milli,
            compute_limit_milli=lease.placement.compute.limit_milli,
            sessions=[
                pb.MovingSession(
                    session_id=session.session_id,
                    ticket=self._gateway.ticket(session.session_id),
                    pid=session.client_pid,
                    process_name=session.process_name,
                    pod=session.pod,
                )
                for session in workers
            ],
        )

    async def _send_all(
        self, workers: list[Session], other: ApplianceClient, place: pb.ReceiveLeaseReply
    ) -> tuple[float, list[Answer | None]]:
        """Sends all sessions; returns since when they are paused (monotonic), and their workers' answers."""
        async with contextlib.AsyncExitStack() as stack:
            connections = []
            for session, ticket in zip(workers, place.tickets, strict=True):
                preface = b"RGP1" + bytes.fromhex(session.session_id) + bytes.fromhex(ticket)
                rate = self._bytes_per_second and max(1, self._bytes_per_second // len(workers))
                ours = await _connect(other, place.data_port, preface, stack, rate)
                connections.append(stack.enter_context(ours))
            pairs = zip(workers, connections, strict=True)
            ahead = await asyncio.gather(*(self._send_ahead(session, ours) for session, ours in pairs))
            paused = time.monotonic()
            if any(not isinstance(answer, Ahead) for answer in ahead):
                return paused, ahead
            return paused, await asyncio.gather(*(self._send(session) for session in workers))

    async def _send_ahead(self, session: Session, connection: socket.socket) -> Answer | None:
        """Sends a session's memory while the program runs, however slow the network is."""
        late = asyncio.get_running_loop().call_later(_AHEAD_SECONDS, _break, connection)
        try:
            order = orders.ahead()
            return await self._sessions.ask(session, order, [connection.fileno()], size=0, seconds=_AHEAD_SECONDS)
        finally:
            late.cancel()

    async def _send(self, session: Session) -> Answer | None:
        order = orders.move(seconds=DRAIN_SECONDS)
        size = session.granted_bytes
        # Adds the time of a transfer at the limited rate.
        slowly = size * len(session.lease.sessions) / self._bytes_per_second if self._bytes_per_second else 0.0
        return await self._sessions.ask(session, order, size=size, seconds=DRAIN_SECONDS + slowly)

    async def _settle(
        self, other: ApplianceClient, invitation: str, workers: list[Session], answers: list[Answer | None]
    ) -> None:
        """Settles the lease at the destination. On failure its sessions continue here, and RefusalError is raised."""
        ended = "Ended: one of its processes ended meanwhile; move it again"
        staying = [answer for answer in answers if not isinstance(answer, Moved)]
        reasons = (one_line(answer.reason, _MOST_REASON) for answer in staying if isinstance(answer, NotMoved))
        why = next(filter(None, reasons), ended) if staying else ""
        try:
            await _aside(other.settle_lease, invitation, keep=not why)
        except ApplianceError as error:
            why = why or str(error)
        if why:
            for session, answer in zip(workers, answers, strict=True):
                if isinstance(answer, Ahead | Moved) and session.process is not None:
                    session.process.send(orders.stay())
            raise refused(f"{why}; it stays here as it was")


def _break(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _authority(to: Destination) -> Iterator[Access]:
    """Yields the access to the other appliance. It has no token: the invitation gives the permission."""
    if not to.ca:
        yield Access("")
        return
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(to.ca)
        file.flush()
        yield Access("", Path(file.name), to.server_name or None)


async def _aside(call: Callable[..., _T], *arguments: object, **named: object) -> _T:
    """Runs a blocking call in a thread for moves, so that a hanging appliance delays no other work."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(call, *arguments, **named))


async def _connect(
    other: ApplianceClient, port: int, preface: bytes, stack: contextlib.AsyncExitStack, rate: int | None
) -> socket.socket:
    """Connects to a worker of the other appliance. This process does TLS, and the kernel limits the rate."""
    tls = other.access.tls_context()
    if tls is None:
        plain = await _aside(other.connect_data, port, tls=False)
        plain.settimeout(_CONNECT_SECONDS)
        with contextlib.suppress(OSError):
            plain.sendall(preface)
            if await _aside(plain.recv, 1) == b"K":
                _pace(plain, rate)
                plain.settimeout(None)
                return plain
        plain.close()
        raise _not_accepted(other, port)
    ours, carrying = await _connect_tls(other, port, preface, tls, stack)
    _pace(carrying, rate)
    return ours


def _pace(carrying: socket.socket, rate: int | None) -> None:
    if rate is not None:
        carrying.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate.to_bytes(8, sys.byteorder))


async def _connect_tls(
    other: ApplianceClient, port: int, preface: bytes, tls: ssl.SSLContext, stack: contextlib.AsyncExitStack
) -> tuple[socket.socket, socket.socket]:
    """Connects by TLS. Returns the plain end for our worker, and the TCP socket that carries its data."""
    host, name = other.endpoint.host, other.access.server_name or other.endpoint.host
    far_writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            far_reader, far_writer = await asyncio.open_connection(
                host, port, ssl=tls, server_hostname=name, limit=_READ_BYTES
            )
        far_writer.write(preface)
        async with asyncio.timeout(_CONNECT_SECONDS):
            answer = await far_reader.readexactly(1)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        if far_writer is not None:
            far_writer.close()
        raise _not_accepted(other, port) from None
    if answer != b"K":
        far_writer.close()
        raise _not_accepted(other, port)
    ours, near = socket.socketpair()
    near_reader, near_writer = await asyncio.open_connection(sock=near, limit=_READ_BYTES)
    pumps = asyncio.gather(_pump(near_reader, far_writer), _pump(far_reader, near_writer))
    stack.push_async_callback(_ended, pumps)
    return ours, far_writer.get_extra_info("socket")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _ended(pumps: "asyncio.Future[tuple[None, None]]") -> None:
    # The worker has closed its end when this runs.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CONNECT_SECONDS):
            await pumps


def _not_accepted(other: ApplianceClient, port: int) -> RefusalError:
    where = Endpoint(other.endpoint.host, port)
    return refused(f"the data port {where} of the other appliance did not accept a session; it stays here")
