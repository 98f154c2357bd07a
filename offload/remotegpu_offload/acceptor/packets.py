"""Packets between appliance, zygote, keeper and session: one JSON object each, on SOCK_SEQPACKET sockets."""

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
    """Sends one packet with file descriptors. Raises OSError if the other end is closed."""
    data = json.dumps(packet).encode()
    if descriptors:
        socket.send_fds(sock, [data], list(descriptors))
    else:
        sock.send(data)


def receive(sock: socket.socket) -> tuple[Packet, list[int]] | None:
    """Returns the next packet and its descriptors, which the caller must close.

    None if the other end is closed, or if the packet is not a JSON object. Blocks.
    """
    try:
        data, descriptors, _, _ = socket.recv_fds(sock, _MOST, _MOST_DESCRIPTORS)
        packet = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return None
    return (packet, descriptors) if isinstance(packet, dict) else None
