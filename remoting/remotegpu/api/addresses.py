"""Addresses as people and manifests write them: HOST:PORT, with an IPv6 address in brackets or bare."""

import ipaddress
import socket
from typing import Final

# All addresses of a machine: IPv6, and IPv4 through the same socket.
EVERYWHERE: Final = "::"
_EVERYWHERE_IPV4: Final = "0.0.0.0"  # noqa: S104 (the user asked for all addresses)


def split(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Returns host, without brackets, and port; raises ValueError. Without a `default_port` the port is required."""
    text = text.strip()
    host, colon, port = text.rpartition(":")
    if default_port is not None and (not colon or text.endswith("]")):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address")
    return host, int(port)


def joined(host: str, port: int) -> str:
    """HOST:PORT, or [V6]:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host, which may be in brackets."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def to_listen_on(host: str) -> str:
    """Returns `host`, or all of IPv4 instead of all of both on a machine whose kernel has no IPv6."""
    return _EVERYWHERE_IPV4 if host == EVERYWHERE and not _has_ipv6() else host


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((EVERYWHERE, 0))
    except OSError:
        return False
    return True
