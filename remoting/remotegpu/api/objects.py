"""Typed objects that pass between the parts."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
# What reading an object raises that is not as its schema says, or whose schema is another release's.
UNREADABLE: Final = (KeyError, ValueError, TypeError, AttributeError, ArithmeticError)


def readable(
    read: Callable[[Mapping[str, Any]], _T],
    stored: Iterable[Mapping[str, Any]],
    left_out: Callable[[str], None] = lambda _: None,
) -> list[_T]:
    """Objects of a cluster, without those that cannot be read: whatever one contains is its own error. `left_out` is
    told which, and why, in a sentence."""
    found = []
    for each in stored:
        try:
            found.append(read(each))
        except UNREADABLE as error:
            metadata = each["metadata"]
            name = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
            left_out(f"{name} cannot be read and is left out: {error}")
    return found


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
