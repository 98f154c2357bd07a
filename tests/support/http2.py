"""Builds frames of HTTP/2 (RFC 9113) for attacks, which a library would refuse to send."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 7, 8
END_STREAM, END_HEADERS = 1, 4
ACK = 1
INITIAL_WINDOW_SIZE = 4
CANCEL = 8


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *each) for each in values.items()))


def _field(name: str, value: str) -> bytes:
    """Encodes a field as a literal without indexing (RFC 7541, 6.2.2). Name and value have at most 126 bytes."""
    assert len(name) < 127
    assert len(value) < 127
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def call(path: str, authority: str, token: str) -> bytes:
    """Returns the encoded headers of a gRPC call."""
    fields = {
        ":method": "POST",
        ":scheme": "https",
        ":path": path,
        ":authority": authority,
        "te": "trailers",
        "content-type": "application/grpc",
        "authorization": f"Bearer {token}",
    }
    return b"".join(_field(*each) for each in fields.items())


def frames(connection: socket.socket, buffer: bytearray) -> list[tuple[int, int, bytes]]:
    """Waits for frames. Returns kind, stream and content of each; an empty list at the end of the connection."""
    found: list[tuple[int, int, bytes]] = []
    while not found:
        data = connection.recv(1 << 16)
        if not data:
            return []
        buffer += data
        while len(buffer) >= 9:
            length = int.from_bytes(buffer[:3])
            if len(buffer) < 9 + length:
                break
            kind, stream = buffer[3], int.from_bytes(buffer[5:9]) & 0x7FFFFFFF
            found.append((kind, stream, bytes(buffer[9 : 9 + length])))
            del buffer[: 9 + length]
    return found
