"""A channel of packets between the appliance and a program that it starts: each packet is a JSON object.

The socket is of the type SOCK_SEQPACKET.
"""

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from io import FileIO
from typing import Any, Final

_log = logging.getLogger(__name__)

# Neither end reads a longer packet (`MAX_PACKET` of the gateway, `PACKET` of the worker).
MAX_PACKET: Final = 64 << 10
# A tenant may control a worker, and a worker that sends without a pause must not block the event loop.
_PACKETS_PER_TURN: Final = 32
# The number of packets that may wait for the other end. If it reads none of them, it is treated as gone.
_MOST_WAITING: Final = 1024
# The limit of `hear_out`, in rounds of `_PACKETS_PER_TURN` packets.
_MOST_UNHEARD: Final = 32
# Transient errors of the kernel: no memory now, or too many descriptors in flight.
_LATER: Final = (errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS)
_LATER_SECONDS: Final = 0.02

Packet = dict[str, Any]
# A packet, and the open file that came with it.
OnPacket = Callable[[Packet, FileIO | None], None]


def packet_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class PacketChannel:
    """Our end of a packet socket. `on_close` is called once, when the other end is gone or sends invalid data.

    At most `most_waiting` packets wait until the other end reads. With more, the other end is treated as gone.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_packet: OnPacket,
        on_close: Callable[[], None] = lambda: None,
        *,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._on_packet = on_packet
        self._on_close = on_close
        self._most_waiting = most_waiting
        # Packets that wait, with duplicates of their descriptors.
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._later: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)
        self.closed = False

    @property
    def waits(self) -> bool:
        """Whether packets wait for the other end to read."""
        return bool(self._waiting)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, packet: Packet, fds: Sequence[int] = ()) -> None:
        """Sends a packet in order, without blocking. A packet that does not fit now is queued.

        A packet that is too long is logged and not sent; the channel stays open.
        """
        if self.closed:
            return
        data = json.dumps(packet).encode()
        if len(data) > MAX_PACKET:
            _log.error(
                "an order %r of %d bytes is longer than the %d that its receiver reads: it is not sent; "
                "name less in the call that led to it",
                packet.get("op"), len(data), MAX_PACKET,
            )  # fmt: skip
        elif self._waiting or not self._send_now(data, fds):
            self._keep(data, fds)

    def _send_now(self, data: bytes, fds: Sequence[int]) -> bool:
        """Sends a packet now. Returns False if the packet has to wait."""
        try:
            if fds:
                socket.send_fds(self._socket, [data], list(fds))
            else:
                self._socket.send(data)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _LATER:
                return False
            if error.errno == errno.EMSGSIZE:
                _log.error("an order of %d bytes is longer than the kernel sends: it is not sent", len(data))
                return True
            self.close()
        return True

    def _keep(self, data: bytes, fds: Sequence[int]) -> None:
        if self.closed:
            return
        if len(self._waiting) >= self._most_waiting:
            _log.error("a program has read none of %d orders: it is taken for gone", len(self._waiting))
            self.close()
            return
        self._waiting.append((data, [os.dup(fd) for fd in fds]))
        if len(self._waiting) == 1:
            self._loop.add_writer(self._socket, self._writable)

    def _writable(self) -> None:
        for _ in range(_PACKETS_PER_TURN):
            if self.closed or not self._waiting:
                break
            data, fds = self._waiting[0]
            if not self._send_now(data, fds):
                # The socket is full again, or the kernel lacks a resource. In the second case the socket stays
                # writable, so only a timer can retry.
                self._loop.remove_writer(self._socket)
                self._later = self._loop.call_later(_LATER_SECONDS, self._again)
                return
            if not self.closed:
                self._waiting.popleft()
                _close_all(fds)
        if not self.closed and not self._waiting:
            self._loop.remove_writer(self._socket)

    def _again(self) -> None:
        if not self.closed and self._waiting:
            self._loop.add_writer(self._socket, self._writable)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            if self._later is not None:
                self._later.cancel()
            for _, fds in self._waiting:
                _close_all(fds)
            self._waiting.clear()
            self._socket.close()
            self._on_close()

    def hear_out(self) -> None:
        """Reads the remaining packets after the other end has exited."""
        # More than a socket holds, but limited: a child process of the other end may still send.
        for _ in range(_MOST_UNHEARD):
            if not self._readable():
                return

    def _readable(self) -> bool:
        """Reads a few packets. Returns whether there may be more."""
        for _ in range(_PACKETS_PER_TURN):
            if self.closed:
                return False
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, MAX_PACKET, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return False
            except OSError:
                data, fds = b"", []
            packet, files = decode(data), _files(fds)
            if packet is None or files is None:
                self.close()
                return False
            self._on_packet(packet, files[0] if files else None)
        return True


def _files(fds: Sequence[int]) -> list[FileIO] | None:
    """Wraps the descriptors in files. If one is not a readable file, closes all and returns None."""
    files: list[FileIO] = []
    for place, fd in enumerate(fds):
        try:
            files.append(FileIO(fd))
        except OSError:
            _close_all(fds[place:])
            for file in files:
                file.close()
            return None
    return files


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def decode(data: bytes) -> Packet | None:
    """Parses a packet. Returns None if the data is not a JSON object."""
    try:
        packet = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return packet if isinstance(packet, dict) else None


def text(packet: Packet, key: str) -> str:
    """Returns a packet's text; "" for anything else."""
    value = packet.get(key)
    return value if isinstance(value, str) else ""


def flag(packet: Packet, key: str) -> bool:
    """Returns whether a packet's value is true; False for anything else."""
    return packet.get(key) is True


def items(packet: Packet, key: str) -> list[Any]:
    """Returns a packet's list; an empty one for anything else."""
    value = packet.get(key)
    return value if isinstance(value, list) else []


def whole_number(packet: Packet, key: str) -> int:
    """Returns the number under `key`, from 0 to 2^63 - 1; 0 for any other value."""
    value = packet.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else 0
