"""Both ends of the way that values take, in one process; and classes as a program has them."""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import Any

from remotegpu_offload.objects.codec import Codec


class Colour(enum.Enum):
    RED = 1
    GREEN = "green"


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: float
    y: list[Any]


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a

    def __eq__(self, other: Any) -> Any:
        return type(other) is Slotted and other.a == self.a

    __hash__ = None  # type: ignore[assignment]


Pair = collections.namedtuple("Pair", "left right")


class Ends:
    """Both ends' codecs in one process."""

    def __init__(self, **options: Any) -> None:
        self.client = Codec(client=True, trusted=False, packages={"support"}, **options)
        self.acceptor = Codec(client=False, **options)
        self.acceptor.fetch = lambda hold, names: self.client.outgoing.pages(hold, names)

    def to_acceptor(self, value: Any) -> Any:
        """Returns the value that the acceptor gets, and how many bytes travelled."""
        packed = self.client.dumps(value, paged=True)
        try:
            return self.acceptor.loads(packed.header, packed.buffers), sum(map(len, packed.buffers))
        finally:
            self.client.sent(packed)

    def to_client(self, value: Any) -> Any:
        """Returns the value that the client gets."""
        packed = self.acceptor.dumps(value)
        return self.client.loads(packed.header, [bytearray(buffer) for buffer in packed.buffers])

    def count_fetches(self) -> list[int]:
        """Records, for each time that the acceptor asks for pages, how many."""
        counts: list[int] = []
        fetch = self.acceptor.fetch

        def counted(hold: int, names: list[str]) -> Any:
            counts.append(len(names))
            return fetch(hold, names)

        self.acceptor.fetch = counted
        return counts

    def both(self, value: Any) -> Any:
        return self.to_client(self.to_acceptor(value)[0])
