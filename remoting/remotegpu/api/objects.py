"""Typed objects that pass between the parts."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
# Errors from reading an object that does not fit its schema, or that has the schema of another release.
UNREADABLE: Final = (KeyError, ValueError, TypeError, AttributeError, ArithmeticError)


def readable(
    read: Callable[[Mapping[str, Any]], _T],
    stored: Iterable[Mapping[str, Any]],
    left_out: Callable[[str], None] = lambda _: None,
) -> list[_T]:
    """Reads objects of a cluster and leaves out the unreadable ones, so that one error does not affect the others.

    `left_out` is called with a sentence for each unreadable object: its name and the error.
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
    """The channel by which an acceptor requests connections, since it cannot open any itself.

    The acceptor uses the descriptor `fd`; its child processes use `path`.
    """

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
