"""Limits the connections of an HTTP server that anyone can reach, in all and for each peer.

Connections are counted before TLS. At a limit, a new connection evicts another one that has no request in progress: a
connection of the same peer if that peer is at its limit, otherwise one of the peer with the most connections. A closed
connection is evicted first, then an idle one, then the oldest. So no client waits because of idle connections.
"""

import asyncio
import asyncio.sslproto
import contextlib
import ipaddress
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from remotegpu.api.addresses import EVERYWHERE, to_listen_on

_log = logging.getLogger(__name__)

# The time for the TLS handshake and the head of the first request.
_HEAD_SECONDS: Final = 5.0
_SWEEP_SECONDS: Final = 0.5
# A connection without a request counts as idle after this time, and is evicted before younger ones.
_STILL_SECONDS: Final = 1.0
_BACKLOG: Final = 128
# The pause after an error of `accept`, for example without a free file descriptor.
_PAUSE_SECONDS: Final = 0.1

# The size of the buffer that each TLS connection has from its first byte on. asyncio's default is 256 KiB.
asyncio.sslproto.SSLProtocol.max_size = 16 << 10

# The servers log their errors here.
_server_log = logging.getLogger(f"{__name__}.server")


def _is_ours(record: logging.LogRecord) -> bool:
    """Returns false for log records of malformed requests: anyone can send many, and they are answered with 400."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_server_log.addFilter(_is_ours)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def runner_of(app: web.Application, **options: Any) -> web.AppRunner:
    """Returns a runner for an HTTP server, without an access log and with filtered errors."""
    return web.AppRunner(app, access_log=None, logger=_server_log, **options)


@dataclass(frozen=True, slots=True)
class Places:
    """The limits of a server, in all and for each peer.

    `waiting` limits connections without a request in progress, `answering` the requests in progress.
    """

    waiting: int
    waiting_of_peer: int
    answering: int
    answering_of_peer: int


@dataclass(slots=True, eq=False)
class _Visitor:
    connection: socket.socket
    descriptor: int
    peer: str
    since: float = field(default_factory=time.monotonic)
    asked: bool = False  # whether the connection has had a complete request
    answers: int = 0  # the number of its requests in progress
    transport: asyncio.BaseTransport | None = None

    @property
    def gone(self) -> bool:
        return self.transport is not None and self.transport.is_closing()

    def show_out(self) -> None:
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class Door:
    def __init__(self, places: Places) -> None:
        self._places = places
        # By file descriptor, in the order of arrival.
        self._visitors: dict[int, _Visitor] = {}

    def counted(self, handler: Handler) -> Handler:
        """Wraps a handler so that its requests count as in progress. Answers 503 at the limit."""

        async def answer(request: web.Request) -> web.StreamResponse:
            with self._answering(request):
                return await handler(request)

        return answer

    @contextlib.contextmanager
    def _answering(self, request: web.Request) -> Iterator[None]:
        found = None if request.transport is None else request.transport.get_extra_info("socket")
        visitor = None if found is None else self._visitors.get(found.fileno())
        if visitor is None:
            yield
            return
        busy = [each.peer for each in self._visitors.values() if each.answers]
        if len(busy) >= self._places.answering or busy.count(visitor.peer) >= self._places.answering_of_peer:
            raise web.HTTPServiceUnavailable(text="too many requests at a time: try again\n")
        visitor.asked = True
        visitor.answers += 1
        try:
            yield
        finally:
            visitor.answers -= 1
            visitor.since = time.monotonic()

    @contextlib.asynccontextmanager
    async def open(
        self,
        server: web.Server,
        host: str | None,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        reuse_port: bool = False,
    ) -> AsyncIterator[None]:
        """Accepts connections inside the `async with` block. `host` None means all addresses of IPv4 and IPv6."""
        address = to_listen_on(host or EVERYWHERE)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server(
            (address, port),
            family=family,
            backlog=_BACKLOG,
            reuse_port=reuse_port,
            dualstack_ipv6=address == EVERYWHERE,
        )
        listening.setblocking(False)
        tasks = [asyncio.create_task(self._accept(listening, server, tls)), asyncio.create_task(self._sweep())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            listening.close()

    async def _accept(self, listening: socket.socket, server: web.Server, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        serving: set[asyncio.Task[None]] = set()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:
                _log.warning("a connection cannot be accepted: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            visitor = _Visitor(connection, connection.fileno(), peer_of(str(address[0])))
            if leaves := self._who_leaves(visitor.peer):
                self._forget(leaves)
                leaves.show_out()
            # A closed connection may have had the same descriptor.
            self._visitors.pop(visitor.descriptor, None)
            self._visitors[visitor.descriptor] = visitor
            task = asyncio.create_task(self._serve(visitor, server, tls))
            serving.add(task)
            task.add_done_callback(serving.discard)

    async def _serve(self, visitor: _Visitor, server: web.Server, tls: ssl.SSLContext | None) -> None:
        loop, seconds = asyncio.get_running_loop(), _HEAD_SECONDS if tls else None
        try:
            visitor.transport, _ = await loop.connect_accepted_socket(
                server, visitor.connection, ssl=tls, ssl_handshake_timeout=seconds
            )
        except (OSError, asyncio.CancelledError):
            visitor.connection.close()  # no TLS handshake, closed by the client, or evicted
            self._forget(visitor)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            late = time.monotonic() - _HEAD_SECONDS
            for visitor in list(self._visitors.values()):
                if visitor.gone or (not visitor.asked and visitor.since < late):
                    self._forget(visitor)
                    visitor.show_out()

    def _who_leaves(self, peer: str) -> _Visitor | None:
        return who_leaves(
            [(each, each.peer) for each in self._visitors.values() if not each.answers], peer, self._places
        )

    def _forget(self, visitor: _Visitor) -> None:
        if self._visitors.get(visitor.descriptor) is visitor:
            del self._visitors[visitor.descriptor]


def who_leaves(waiting: list[tuple[_Visitor, str]], peer: str, places: Places) -> _Visitor | None:
    """Returns the waiting connection to evict for a new connection of `peer`; None if there is room.

    `waiting` has the connections in the order of arrival, each with its peer.
    """
    peers = [each for _, each in waiting]
    if peers.count(peer) < places.waiting_of_peer:
        if len(peers) < places.waiting:
            return None
        peer = max(peers, key=peers.count)
    still = time.monotonic() - _STILL_SECONDS
    of_peer = [visitor for visitor, its in waiting if its == peer]
    return min(of_peer, key=lambda visitor: (not visitor.gone, visitor.asked or visitor.since > still))


def peer_of(host: str) -> str:
    """Returns the peer of an address: the IPv4 address, or the /64 network of an IPv6 address, usually one host."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
