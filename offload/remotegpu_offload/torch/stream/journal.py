"""The batches that were sent since the acceptor's state was last saved.

With both, a new acceptor can replace a lost one.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from remotegpu_offload.wire.frames import Buffer

LIMIT: Final = 1 << 30
"""So many bytes are remembered; a program that sends more between two snapshots cannot be resumed before the next."""

CHANGING: Final = frozenset(("rng_set", "seed", "threads"))
"""Requests in `then` that must be repeated with their batch, since they change state at the acceptor."""


class Sent(NamedTuple):
    """One batch: its number, the header of its message, and its buffers."""

    number: int
    header: dict[str, Any]
    buffers: tuple[Buffer, ...]


class Journal:
    """The sent batches by number, without gaps. Only one thread at a time may call `add`."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.sent: list[Sent] = []
        self.complete_from = 0
        self._limit = limit
        self._bytes = 0

    def add(self, number: int, header: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        """Adds a batch. Copies buffers that their owner may change."""
        then = header.get("then")
        if then not in CHANGING:
            own = int(header.get("own", 0))
            header, buffers = {"op": "run"}, buffers[: len(buffers) - own]
        kept = tuple(one if isinstance(one, bytes) else bytes(one) for one in buffers)
        self.sent.append(Sent(number, header, kept))
        self._bytes += sum(map(len, kept))
        if self._bytes > self._limit:
            self.sent.clear()
            self._bytes = 0
            self.complete_from = number + 1

    def forget_before(self, number: int) -> None:
        """Drops the batches that a saved state contains."""
        self.sent = [one for one in self.sent if one.number >= number]
        self._bytes = sum(len(buffer) for one in self.sent for buffer in one.buffers)
