"""Opens connections of strangers, from several loopback addresses, which count as different peers."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Sequence

# The header of a TLS record of 512 bytes, and the first bytes of the record.
HALF_HANDSHAKE = bytes.fromhex("1603010200010001fc0303") + bytes(20)
# RFC 9113, 3.4: the client's preface and its empty settings.
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


class Strangers(contextlib.ExitStack):
    """Connections that stay open until the block ends or the server closes them."""

    def __init__(self, ports: Sequence[int], addresses: int = 8) -> None:
        super().__init__()
        self._ports = ports
        self._sources = itertools.cycle(f"127.0.0.{last}" for last in range(2, 2 + addresses))
        self.connections: dict[int, list[socket.socket]] = {port: [] for port in ports}

    def come(self, count: int, words: bytes) -> None:
        """Opens `count` connections to each port, and sends only `words` on each."""
        for _ in range(count):
            source = next(self._sources)
            for port in self._ports:
                connection = socket.create_connection(("127.0.0.1", port), 20, source_address=(source, 0))
                self.enter_context(connection)
                with contextlib.suppress(ConnectionError):
                    connection.sendall(words)
                self.connections[port].append(connection)

    def first_of_each_port(self) -> list[socket.socket]:
        return [connections[0] for connections in self.connections.values()]
