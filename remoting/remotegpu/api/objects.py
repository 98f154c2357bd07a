"""Typed objects that pass between the parts."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
# Errors from reading an object that does not fit its schema, or whose schema is another release's.
UNREADABLE: Final = (KeyError, ValueError, TypeError, AttributeError, ArithmeticError)


def readable(
    read: Callable[[Mapping[str, Any]], _T],
    stored: Iterable[Mapping[str, Any]],
    left_out: Callable[[str], None] = lambda _: None,
) -> list[_T]:
    """Returns objects of a cluster without those that cannot be read: an error in one does not affect the others.

    `left_out` gets a sentence for each: its name and the error.
    """
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
    """The way an acceptor asks for connections, as it makes none: a descriptor, and a path for its children."""

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
