"""A session's further connections: by one its client gives memory, by others bytes of large copies travel."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import socket
import struct

from attacker.raw import CONTEXT, MIB, Raw

ADDRESS = 0x7000_0000_0000
SIZE = 4 * MIB
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def memfd(size: int = SIZE, seals: int = SEALS, flags: int = 0) -> int:
    file = os.memfd_create("given", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(file, size)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


class Giver:
    """The connection by which a session's client gives memory."""

    def __init__(self, session: Raw, ticket: str = "") -> None:
        """`ticket`: another one than the session's."""
        name, ticket_bytes = bytes.fromhex(session.reply.session_id), bytes.fromhex(ticket or session.reply.ticket)
        proof = hmac.digest(ticket_bytes, b"RGM1" + name, hashlib.sha256)
        self.socket = socket.socket(socket.AF_UNIX)
        session.tenant.appliance.open_connections.callback(self.socket.close)
        self.socket.settimeout(20)
        self.socket.connect(session.reply.data_socket)
        self.socket.sendall(b"RGM1" + name + proof)

    def give(self, file: int, address: int = ADDRESS, size: int = SIZE, context: int = CONTEXT) -> bytes:
        socket.send_fds(self.socket, [struct.pack("<3Q", context, address, size)], [file])
        return self.socket.recv(1)

    def take_back(self) -> None:
        self.socket.sendall(struct.pack("<3Q", 0, ADDRESS, 0))


class Stripe:
    """A connection for bytes of a session's large copies."""

    def __init__(self, session: Raw, number: int, ticket: str = "") -> None:
        """`ticket`: another one than the session's."""
        self.number = number
        name = bytes.fromhex(session.reply.session_id)
        head = b"RGS1" + name
        said = struct.pack("<Q", number)
        proof = hmac.digest(bytes.fromhex(ticket or session.reply.ticket), head + said, hashlib.sha256)
        port = session.connection.getpeername()[1]
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        session.tenant.appliance.open_connections.callback(self.socket.close)
        self.socket.sendall(head + proof + said)
        self.accepted = False
        with contextlib.suppress(ConnectionError):
            self.accepted = self.socket.recv(1) == b"K"

    def send(self, command: int, data: bytes, length: int | None = None) -> None:
        # The worker may have ended the stripe already.
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(struct.pack("<QQ", command, len(data) if length is None else length) + data)

    def receive(self) -> tuple[int, bytes]:
        command, length = struct.unpack("<QQ", self._exactly(16))
        return command, self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, "the worker ended the stripe"
            data += more
        return bytes(data)
