"""Parses and formats addresses of the form HOST:PORT. An IPv6 host may be in brackets or bare."""

import ipaddress
import socket
from typing import Final

# The wildcard address. A socket that is bound to it accepts IPv6 and IPv4.
EVERYWHERE: Final = "::"
_EVERYWHERE_IPV4: Final = "0.0.0.0"  # noqa: S104 (the user asked for all addresses)


def split(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Returns the host, without brackets, and the port. Without a `default_port` the text must have a port.

    Raises ValueError if the text is not an address.
    """
    text = text.strip()
    host, colon, port = text.rpartition(":")
    if default_port is not None and (not colon or text.endswith("]")):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address")
    return host, int(port)


def joined(host: str, port: int) -> str:
    """Returns HOST:PORT, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether the host, which may be in brackets, is `localhost` or a loopback address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def to_listen_on(host: str) -> str:
    """Returns the host to bind to: `host`, but 0.0.0.0 in place of :: if the kernel has no IPv6."""
    return _EVERYWHERE_IPV4 if host == EVERYWHERE and not _has_ipv6() else host


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind((EVERYWHERE, 0))
    except OSError:
        return False
    return True
