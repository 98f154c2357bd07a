"""An HTTP server for untrusted clients, used by the page and by the metrics.

The bytes and time for the head of a request are limited, and so are the connections of each peer. A new connection
never waits for idle ones: it replaces the oldest.
"""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

# Connections without a complete head: of all peers, and of one peer.
_MOST: Final = 128
_MOST_OF_PEER: Final = 32
_HEAD_SECONDS: Final = 5.0
_HEAD_BYTES: Final = 16 << 10
# Requests that are answered at a time.
_MOST_ANSWERS: Final = 256


class _Head:
    """The input of a handler. Raises ConnectionError if the head of a request is too long."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines
        self._left = _HEAD_BYTES

    def readline(self, most: int = -1) -> bytes:
        line: bytes = self._lines.readline(self._left + 1 if most < 0 else min(most, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise ConnectionError("the head of the request is too long")
        return line

    def close(self) -> None:
        self._lines.close()


class Handler(BaseHTTPRequestHandler):
    """One request of a connection."""

    timeout = _HEAD_SECONDS

    def setup(self) -> None:
        super().setup()
        self.rfile = _Head(self.rfile)  # type: ignore[assignment]

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        if isinstance(self.server, Server) and not self.server.answers(self.request):
            raise ConnectionError("too many requests at a time")
        return parsed


class Server(ThreadingHTTPServer):
    """A server with a thread for each connection. `wrap` may add TLS; the thread does the handshake."""

    daemon_threads = True
    # The length of the kernel's queue of connections that are not accepted yet.
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[Handler],
        wrap: Callable[[socket.socket], socket.socket] = lambda connection: connection,
        turned_away: Callable[[], None] = lambda: None,
    ) -> None:
        """Binds to the address. Any thread calls `turned_away` for each connection that is closed by a limit."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__((address[0].strip("[]"), address[1]), handler)
        self._wrap = wrap
        self._turned_away = turned_away
        self._lock = threading.Lock()
        # Connections without a complete head, oldest first: time of arrival and peer.
        self._strangers: dict[socket.socket, tuple[float, str]] = {}
        self._answered: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection = self._wrap(connection)
        peer = _peer_of(address[0])
        with self._lock:
            if leaves := self._who_leaves(peer):
                self._show_out(leaves)
                self._turned_away()
            self._strangers[connection] = (time.monotonic(), peer)
        return connection, address

    def answers(self, connection: socket.socket) -> bool:
        """Notes that the head of a request is complete. Returns whether the request gets an answer."""
        with self._lock:
            self._strangers.pop(connection, None)
            if len(self._answered) >= _MOST_ANSWERS:
                self._turned_away()
                return False
            self._answered.add(connection)
            return True

    def service_actions(self) -> None:
        """Closes connections whose head is late. `serve_forever` calls it twice a second."""
        late = time.monotonic() - _HEAD_SECONDS
        with self._lock:
            for connection in [each for each, (since, _) in self._strangers.items() if since < late]:
                self._show_out(connection)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._strangers.pop(request, None)
            self._answered.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: clients without TLS, or without a request, are frequent."""

    def _who_leaves(self, peer: str) -> socket.socket | None:
        """Returns the connection to close for a new one; None if there is room.

        This is the oldest connection of `peer` if that is at its limit, else of the peer with most connections.
        """
        peers = [each for _, each in self._strangers.values()]
        if peers.count(peer) < _MOST_OF_PEER:
            if len(peers) < _MOST:
                return None
            peer = max(peers, key=peers.count)
        return next(each for each, (_, its) in self._strangers.items() if its == peer)

    def _show_out(self, connection: socket.socket) -> None:
        """Shuts a connection down. Its thread then reads EOF."""
        del self._strangers[connection]
        with contextlib.suppress(OSError):
            # TLS's own shutdown would wait for the reading thread.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _peer_of(host: str) -> str:
    """Returns an IPv4 address, or the /64 network of an IPv6 address, which one host usually has alone."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    mapped = address.ipv4_mapped
    return str(mapped or ipaddress.ip_network((address, 64), strict=False))
