"""Typed objects that pass between the parts."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from remotegpu.api.quantities import MILLI_PER_GPU, format_bytes, format_milli


@dataclass(frozen=True, slots=True)
class Ask:
    """A share that is asked for: `count` distinct GPUs, and of each either `milli` thousandths or `memory_bytes`."""

    count: int = 1
    milli: int = MILLI_PER_GPU
    memory_bytes: int = 0

    def __str__(self) -> str:
        each = format_bytes(self.memory_bytes) if self.memory_bytes else format_milli(self.milli)
        return f"{each} of a GPU" if self.count == 1 else f"{each} of each of {self.count} GPUs"

    def bytes_of(self, shareable: int) -> int:
        """What this asks of a GPU with so many shareable bytes."""
        return self.memory_bytes or shareable * self.milli // MILLI_PER_GPU


@dataclass(frozen=True, slots=True)
class Share:
    """A lease as the client library needs it; the field names are those of REMOTEGPU_SHARES."""

    endpoint: str
    lease_id: str
    lease_secret: str
    ca: str | None = None
    server_name: str | None = None


def shares_to_env(shares: Iterable[Share]) -> str:
    return json.dumps([asdict(share) for share in shares])
