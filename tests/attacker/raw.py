"""A client that speaks the wire by itself (`remoting/registry/wire-format.md`) and keeps to no rule of a client."""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import struct
from dataclasses import dataclass
from typing import Any

from support.stand_in import Tenant
from support.system import ROOT

from remotegpu.rpc import WIRE_VERSION

_MESSAGES = (ROOT / "remoting" / "protocol" / "src" / "message.rs").read_text()
#: Codes of frames by the name of the message.
CODES = {name: int(code, 16) for code, name in re.findall(r"^    (0x[0-9a-f]{4}) (\w+)", _MESSAGES, re.MULTILINE)}
NEED_IMAGE = 0x1_0000
HEADER = struct.Struct("<IIQQQ")
MIB = 1 << 20
CONTEXT, LEGACY = 1, 2
STREAM_COPY = LEGACY


@dataclass(frozen=True, slots=True)
class Reply:
    code: int
    tail: bytes
    data: bytes  # of `HostBytes` on the way to it


class EndedError(Exception):
    """The connection or the session has ended. `code` is that of `Ending`, if there was one."""

    def __init__(self, code: int | None, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def hex_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def extent(width: int) -> bytes:
    return struct.pack("<5Q", width, 1, 1, width, width)


class Raw:
    """A session. Its arena is known, and there is a context on device 0."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        table = tenant.appliance.client.hello().versions.table_hash
        self.reply = tenant.open_session(table_hash=table)
        assert not self.reply.refusal, self.reply.refusal
        self.connection = tenant.connect(b"RGP1", self.reply.session_id, self.reply.ticket)
        self.connection.settimeout(60)
        self.seq = 0
        opened = self.ask("Open", struct.pack("<IQI", WIRE_VERSION, table, 1) + hex_text("raw"))
        self.arena, self.arena_bytes, self.granularity, self.image_bytes = struct.unpack("<4Q", opened.tail)
        self.send("ContextCreate", struct.pack("<QII?Q", CONTEXT, 0, 0, False, LEGACY))
        assert self.synchronize() == 0

    def frame(self, code: int | str, payload: bytes, stream: int = 0) -> bytes:
        self.seq += 1
        number = CODES[code] if isinstance(code, str) else code
        return HEADER.pack(len(payload), number, self.seq, stream, 0) + payload

    def send(self, code: int | str, payload: bytes, stream: int = 0) -> int:
        try:
            self.connection.sendall(self.frame(code, payload, stream))
        except ConnectionError as error:
            raise self._ended() from error
        return self.seq

    def _ended(self) -> EndedError:
        """Perhaps the worker has said why."""
        with contextlib.suppress(OSError):
            while True:
                self._receive()
        return EndedError(None, "the connection has ended")

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                more = self.connection.recv(count - len(data))
            except ConnectionError:
                more = b""
            if not more:
                raise EndedError(None, "the connection has ended")
            data += more
        return bytes(data)

    def _receive(self) -> tuple[int, int, bytes]:
        length, code, seq, _, _ = HEADER.unpack(self._exactly(HEADER.size))
        payload = self._exactly(length)
        if code == CODES["Ending"]:
            raise EndedError(struct.unpack_from("<I", payload)[0], payload[8:].decode())
        return code, seq, payload

    def answer(self, seq: int) -> Reply:
        data = bytearray()
        while True:
            code, of, payload = self._receive()
            if code == CODES["HostBytes"] and of == seq:
                data += payload[8:]
            if code == CODES["Reply"] and of == seq:
                return Reply(struct.unpack_from("<I", payload)[0], payload[4:], bytes(data))

    def ask(self, code: int | str, payload: bytes, stream: int = 0) -> Reply:
        return self.answer(self.send(code, payload, stream))

    def synchronize(self) -> int:
        """The code tells what failed late."""
        return self.ask("ContextSynchronize", struct.pack("<QQ", CONTEXT, (1 << 64) - 1)).code

    # ---- what attacks are made of

    def grant(self, size: int) -> Reply:
        return self.ask("Grant", struct.pack("<IQQ", 0, size, size))

    def map(self, address: int, size: int) -> int:
        """The code of mapping, once it is complete."""
        self.send("SlabMap", struct.pack("<IQQ", 0, address, size))
        return self.synchronize()

    def allocate(self, size: int, at: int | None = None) -> int:
        address = self.arena if at is None else at
        assert self.grant(size).code == 0
        assert self.map(address, size) == 0
        return address

    def write(self, address: int, data: bytes) -> int:
        payload = struct.pack("<QQ", CONTEXT, address) + extent(len(data)) + struct.pack("<Q", 0) + data
        self.send("CopyToDevice", payload, STREAM_COPY)
        return self.synchronize()

    def read(self, address: int, size: int) -> Reply:
        payload = struct.pack("<QQ", CONTEXT, address) + extent(size) + struct.pack("<QQ", 0, size)
        return self.ask("CopyToHost", payload, STREAM_COPY)

    def load(self, image: bytes, said_bytes: int, module: int = 1) -> Reply:
        name = hashlib.sha256(image).digest()
        for at in range(0, len(image), 512 << 10):
            piece = image[at : at + (512 << 10)]
            self.send("ImageChunk", name + struct.pack("<QQ", at, len(image)) + piece)
        return self.ask(
            "ModuleLoad", struct.pack("<QQ", module, CONTEXT) + name + struct.pack("<I?Q", 0, False, said_bytes)
        )

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def closes(connection: socket.socket, seconds: float) -> bool:
    """Whether the other side ends the connection in time, whatever it says before."""
    connection.settimeout(seconds)
    with contextlib.suppress(ConnectionError):
        try:
            while connection.recv(1 << 16):
                pass
        except TimeoutError:
            return False
    return True
