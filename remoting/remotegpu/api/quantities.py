"""Parses and formats shares: a fraction of a GPU, a number of whole GPUs, or bytes of memory."""

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final

MILLI_PER_GPU: Final = 1000

POSSIBLE_FRACTIONS: Final = (
    "a fraction is 0.001 to 1 of one GPU in steps of 0.001, as 0.25, or a whole number of GPUs, as 2"
)
POSSIBLE_MEMORY: Final = "memory is a positive number of bytes with an optional unit: 512MiB, 4GiB, 4G, 4e9"

# Canonical forms of the API server: 0.25 is stored as "250m", 1000 as "1k".
_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)(?P<suffix>[numkMGTPE]|[KMGTPE]i)?"
)
_DECIMAL_SUFFIXES: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_MEMORY: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?(?:[eE]\d{1,2})?)\s*(?P<unit>[kKMGT]i?B?|B)?")
_UNITS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_MAX_BYTES: Final = 1 << 62
_MOST: Final = (1 << 63) - 1


class QuantityError(ValueError):
    """An invalid share. The message lists the valid forms."""


@dataclass(frozen=True, slots=True)
class Compute:
    """A part of a GPU's time, in thousandths, for appliances that divide it."""

    milli: int = 0  # guaranteed on demand, and the weight for time that others leave; 0: as the memory
    limit_milli: int = MILLI_PER_GPU  # the maximum, even if no other share uses the GPU

    def guaranteed(self, size: int, shareable: int) -> int:
        """Returns the guaranteed thousandths of time for a share of `size` bytes on a GPU with `shareable` bytes."""
        # The conversion of a fraction to bytes rounded down by less than a byte: the added byte makes a quarter of
        # the memory a quarter of the time again. Shares that fit together never exceed the whole time.
        by_memory = max(1, (size + 1) * MILLI_PER_GPU // shareable) if shareable else 1
        return self.milli or min(by_memory, self.limit_milli)

    @property
    def is_given(self) -> bool:
        """Whether the request differs from the default."""
        return self != Compute()

    def __str__(self) -> str:
        guarantee = f"{format_milli(self.milli)} of its time" if self.milli else "time as memory"
        return (
            guarantee if self.limit_milli == MILLI_PER_GPU else f"{guarantee}, at most {format_milli(self.limit_milli)}"
        )


# The default for a request that does not mention time.
TIME_AS_MEMORY: Final = Compute()


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a share of `count` distinct GPUs, and its part of their time.

    On each GPU the share is either `milli_per_gpu` thousandths of the memory or `memory_bytes`.

    >>> Ask(count=2, milli_per_gpu=250).total_milli
    500
    """

    count: int = 1
    milli_per_gpu: int = MILLI_PER_GPU
    memory_bytes: int = 0
    compute: Compute = TIME_AS_MEMORY

    @property
    def total_milli(self) -> int:
        """Thousandths of all GPUs together; meaningless for a share by memory."""
        return self.count * self.milli_per_gpu

    def __str__(self) -> str:
        each = format_bytes(self.memory_bytes) if self.memory_bytes else format_milli(self.milli_per_gpu)
        gpus = f"{each} of a GPU" if self.count == 1 else f"{each} of each of {self.count} GPUs"
        return f"{gpus} with {self.compute}" if self.compute.is_given else gpus

    def bytes_of(self, shareable: int) -> int:
        """Returns the bytes of the share on a GPU with `shareable` bytes."""
        return self.memory_bytes or shareable * self.milli_per_gpu // MILLI_PER_GPU


def parse_fraction(text: str) -> Ask:
    """Parses a number of GPUs: a fraction of up to three decimals, such as "0.25", or a whole number up to 1024.

    Raises QuantityError for other text.
    """
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        value = Decimal("nan")
    if not value.is_finite():
        raise QuantityError(f"{text!r} is not a number; {POSSIBLE_FRACTIONS}")
    if value <= 0:
        raise QuantityError(f"{text} is not more than nothing; {POSSIBLE_FRACTIONS}")
    if value > 1024:
        raise QuantityError(f"{text} is more GPUs than any pool has; {POSSIBLE_FRACTIONS}")
    if value > 1 and value != value.to_integral_value():
        raise QuantityError(f"{text} is neither part of one GPU nor a number of whole ones; {POSSIBLE_FRACTIONS}")
    if value >= 1:
        return Ask(int(value))
    milli = value * MILLI_PER_GPU
    if milli != milli.to_integral_value():
        raise QuantityError(f"{text} has more than three decimals; {POSSIBLE_FRACTIONS}")
    return Ask(1, int(milli))


def parse_compute(guarantee: str | None, limit: str | None) -> Compute:
    """Reads guarantee and limit of time: parts of one GPU, each from "0.001" to "1". None means the default."""
    milli, limit_milli = _part_of_time(guarantee) or 0, _part_of_time(limit) or MILLI_PER_GPU
    if milli > limit_milli:
        raise QuantityError(
            f"{guarantee} of a GPU's time is guaranteed and {limit} is the limit: a limit is at least the guarantee"
        )
    return Compute(milli, limit_milli)


def _part_of_time(text: str | None) -> int | None:
    if text is None:
        return None
    ask = parse_fraction(text)
    if ask.count > 1:
        raise QuantityError(f"{text} of a GPU's time is more than there is; it is 0.001 to 1 of each GPU, as 0.25")
    return ask.milli_per_gpu


def parse_quantity(text: str) -> Decimal:
    """Reads a quantity of the Kubernetes API, which stores 0.25 as "250m" and 1000 as "1k". Raises QuantityError."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise QuantityError(f"{text!r} is no quantity of Kubernetes; write a number, as 0.25 or 250m")
    suffix = match["suffix"] or ""
    if suffix in _BINARY_SUFFIXES:
        value = Decimal(match["number"]) * Decimal(1024) ** _BINARY_SUFFIXES[suffix]
    else:
        value = Decimal(match["number"]).scaleb(_DECIMAL_SUFFIXES.get(suffix, 0))
    if abs(value) > _MOST:
        raise QuantityError(f"{text!r} is more than a quantity of Kubernetes can be, which is 2^63 - 1")
    return value


def parse_memory(text: str) -> int:
    """Reads "4GiB" as bytes. As in Kubernetes, Ki is 1024, and k or K is 1000. Raises QuantityError."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise QuantityError(f"{text!r} is not an amount of memory; {POSSIBLE_MEMORY}")
    unit = (match["unit"] or "").removesuffix("B")
    base = 1024 if unit.endswith("i") else 1000
    value = int(Decimal(match["number"]) * base ** _UNITS[unit.removesuffix("i").upper()])
    if not 0 < value <= _MAX_BYTES:
        raise QuantityError(f"{text!r} is not an amount of memory that a GPU can have; {POSSIBLE_MEMORY}")
    return value


def format_bytes(count: int) -> str:
    """Formats bytes for people: "2.0 GiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_quantity(count: int) -> str:
    """Formats bytes exactly, as Kubernetes writes them: "4Gi", or "1500" if no unit divides the number."""
    for power, unit in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{unit}"
    return str(count)


def format_milli(milli: int) -> str:
    """Formats thousandths for people: 250 is "0.25"."""
    return f"{Decimal(milli) / MILLI_PER_GPU:f}"
