"""JSON objects, one a packet, between the appliance and the programs it starts (SOCK_SEQPACKET)."""

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from io import FileIO
from typing import Any

_MAX_PACKET = 64 << 10
# A worker may be under a tenant's control: it must not keep the event loop to itself by talking without a pause.
_PACKETS_PER_TURN = 32

Packet = dict[str, Any]
# A packet, and the open file that came with it.
OnPacket = Callable[[Packet, FileIO | None], None]


def packet_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class PacketChannel:
    """Our end of such a socket. `on_close` is called once, when the other end is gone or talks nonsense."""

    def __init__(self, sock: socket.socket, on_packet: OnPacket, on_close: Callable[[], None] = lambda: None) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._on_packet = on_packet
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, packet: Packet, fds: Sequence[int] = ()) -> None:
        """Send without waiting. A peer that does not even read its control socket is as good as gone."""
        if self.closed:
            return
        data = json.dumps(packet).encode()
        try:
            if fds:
                socket.send_fds(self._socket, [data], list(fds))
            else:
                self._socket.send(data)
        except OSError:
            self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._on_close()

    def _readable(self) -> None:
        for _ in range(_PACKETS_PER_TURN):
            if self.closed:
                return
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, _MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            files = [FileIO(fd) for fd in fds]
            packet = decode(data)
            if packet is None:
                self.close()
                return
            self._on_packet(packet, files[0] if files else None)


def decode(data: bytes) -> Packet | None:
    """The object, or None for anything that is none."""
    try:
        packet = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return packet if isinstance(packet, dict) else None


def whole_number(packet: Packet, key: str) -> int:
    """A number from 0 to 2^63 of a packet, 0 for anything else."""
    value = packet.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else 0


def one_line(value: object, most: int) -> str:
    """What a tenant wrote, for a log or a terminal: neither commands to it, nor what looks like a line of ours."""
    return "".join(c if c.isprintable() else "?" for c in str(value)[:most])
