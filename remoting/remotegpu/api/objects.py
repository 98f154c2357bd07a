"""Typed objects that pass between the parts."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Asking:
    """Where an acceptor asks for connections, because it makes none: a descriptor, and a path for its children."""

    fd: int
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """A lease as the client library needs it; the field names are those of REMOTEGPU_SHARES."""

    endpoint: str
    lease_id: str
    lease_secret: str
    ca: str | None = None
    server_name: str | None = None
    asking: Asking | None = None


def shares_to_env(shares: Iterable[Share]) -> str:
    return json.dumps([asdict(share) for share in shares])
