"""Validates the destinations of moves, and checks which ones are allowed."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import grpc

from remotegpu.api import addresses
from remotegpu.appliance.refusal import RefusalError

# The value of `--move-to` that allows all destinations.
ANYWHERE: Final = "any"
# The form of invitations and tickets.
SECRET: Final = re.compile(r"[0-9a-f]{64}")
# A DNS name or an address, as in a certificate (RFC 1035, 2.3.4). The address of a host may have a zone (RFC 4007).
_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,253}")
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]{1,253}")
# The size limit of the CA certificates. The gateway lets 64 KiB of a connection through before a call has proved it.
_MOST_CA: Final = 48 << 10


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of a move. An empty `ca` means no TLS."""

    endpoint: str
    invitation: str
    ca: bytes
    server_name: str

    def check(self) -> None:
        """Raises RefusalError if a value is invalid. The caller who moves a lease is not trusted."""
        wrong = (
            (not _place(self.endpoint), "the address is not HOST:PORT"),
            (not SECRET.fullmatch(self.invitation), "the invitation is not one that InviteLease gave"),
            (len(self.ca) > _MOST_CA, f"the authority's certificates are longer than {_MOST_CA >> 10} KiB"),
            (self.server_name and not _NAME.fullmatch(self.server_name), "the server name is no name of a host"),
        )
        for is_wrong, why in wrong:
            if is_wrong:
                raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, f"{why}: the lease stays here")


class Destinations:
    """The appliances to which users may move leases, from the option --move-to. Administrators may use any."""

    def __init__(self, named: Iterable[str]) -> None:
        """Reads addresses of the form HOST:PORT, or ANYWHERE. Raises ValueError if one is neither."""
        self._anywhere = False
        self._places: set[str] = set()
        for each in named:
            if each == ANYWHERE:
                self._anywhere = True
            elif place := _place(each):
                self._places.add(place)
            else:
                raise ValueError(f"{each!r} is neither HOST:PORT nor {ANYWHERE}")

    def check(self, to: Destination, owner: str | None) -> None:
        """Raises RefusalError if `owner` may not move a lease to `to`. None is an administrator."""
        if owner is None or self._anywhere or _place(to.endpoint) in self._places:
            return
        message = (
            f"{owner} moves leases only to where --move-to of this appliance says: have an administrator move it, or "
            "start the appliance with that address in --move-to; it stays here"
        )
        raise RefusalError(grpc.StatusCode.PERMISSION_DENIED, message)


def _place(endpoint: str) -> str:
    """Returns the address in its canonical form; empty if it is invalid."""
    try:
        host, port = addresses.split(endpoint)
    except ValueError:
        return ""
    return addresses.joined(host.lower(), port) if port and _HOST.fullmatch(host) else ""
