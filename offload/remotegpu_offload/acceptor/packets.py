"""JSON objects, one a packet, on SOCK_SEQPACKET sockets: between appliance, zygote, keeper and session."""

import json
import socket
from collections.abc import Sequence
from typing import Any, Final

_MOST: Final = 64 << 10
_MOST_DESCRIPTORS: Final = 8

Packet = dict[str, Any]


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, packet: Packet, descriptors: Sequence[int] = ()) -> None:
    """Raises OSError if the other end is gone."""
    data = json.dumps(packet).encode()
    if descriptors:
        socket.send_fds(sock, [data], list(descriptors))
    else:
        sock.send(data)


def receive(sock: socket.socket) -> tuple[Packet, list[int]] | None:
    """The next packet with its descriptors, which are the caller's; None if the other end is gone or talks nonsense."""
    try:
        data, descriptors, _, _ = socket.recv_fds(sock, _MOST, _MOST_DESCRIPTORS)
        packet = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return None
    return (packet, descriptors) if isinstance(packet, dict) else None
