"""Reconstructs values of the standard library in the client, from an acceptor's descriptions of them."""

import array
import builtins
import collections
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import re
import sys
import types
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any, Final

_FRACTION: Final = re.compile(r"-?[0-9]+(/[0-9]+)?")


def member(kind: Any, value: Any) -> Any:
    """Returns a member of an enumeration. Does not call the enumeration's own handling of missing values."""
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise TypeError("not an enumeration")
    if issubclass(kind, enum.Flag) and isinstance(value, int):
        return kind(value)
    for found in kind:
        if type(found.value) is type(value) and found.value == value:
            return found
    # A lookup by value would accept 1.0 for Color(1).
    raise ValueError(f"{value!r} is no {kind.__qualname__}")


def zone(key: str) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(key)


def standard(name: str) -> Any:
    """Returns the receiver's own stdin, stdout or stderr."""
    if name not in {"stdin", "stdout", "stderr"}:
        raise ValueError(f"{name!r} is no standard stream")
    return getattr(sys, name)


def _bytearray(data: Any = b"") -> bytearray:
    # With a number, the sender would decide how much memory is allocated.
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError("a bytearray is made of bytes")
    return bytearray(data)


def _fraction(numerator: Any, denominator: Any = 1) -> fractions.Fraction:
    # `Fraction` would compute "1e999999999" from a text.
    if isinstance(numerator, str) and _FRACTION.fullmatch(numerator):
        return fractions.Fraction(numerator)
    if not isinstance(numerator, int) or not isinstance(denominator, int):
        raise TypeError("a fraction is made of whole numbers")
    return fractions.Fraction(numerator, denominator)


def _collection(kind: Callable[..., Any]) -> Callable[..., Any]:
    def make(*arguments: Any) -> Any:
        if not all(type(given) in (list, tuple, dict, set, int, type(None)) for given in arguments):
            raise TypeError("a collection is made of a plain one")
        return kind(*arguments)

    return make


def _default(factory: Any = None, *rest: Any) -> Any:
    if factory is not None and factory not in _FACTORIES:
        raise TypeError("a defaultdict's factory must be a builtin type, or trusted in full: `trust: full`")
    return collections.defaultdict(factory, *rest)


def _array(kind: Any, code: Any, form: Any, data: Any) -> Any:
    if kind is not array.array or not isinstance(data, bytes):
        raise TypeError("not an array.array")
    return array._array_reconstructor(kind, code, form, data)  # type: ignore[attr-defined]


def cache_info(*numbers: Any) -> Any:
    """Returns the statistics of a functools cache."""
    if len(numbers) != _CACHE_NUMBERS or not all(type(each) in (int, type(None)) for each in numbers):
        raise TypeError("not what a cache says of itself")
    return functools._CacheInfo(*numbers)


_CACHE_NUMBERS: Final = 4
_LONGEST_PATTERN: Final = 1 << 20


def _pattern(text: Any, flags: Any = 0) -> "re.Pattern[Any]":
    """Compiles a pattern from its text. A text is data, so no code of the sender is executed."""
    if type(text) not in (str, bytes) or len(text) > _LONGEST_PATTERN or type(flags) not in (int, re.RegexFlag):
        raise TypeError("not a regular expression")
    # The flag DEBUG would print the pattern.
    return re.compile(text, flags & ~re.DEBUG)


_FACTORIES: Final = (list, dict, set, int, float, str, bytes, tuple, bool, complex, frozenset, collections.OrderedDict)

# Functions that replace a type that a pickle calls.
MAKERS: Final[dict[type, Callable[..., Any]]] = {
    complex: complex,
    slice: slice,
    range: range,
    bytearray: _bytearray,
    set: _collection(set),
    frozenset: _collection(frozenset),
    object: object,
    collections.OrderedDict: _collection(collections.OrderedDict),
    collections.Counter: _collection(collections.Counter),
    collections.deque: _collection(collections.deque),
    collections.defaultdict: _default,
    types.SimpleNamespace: types.SimpleNamespace,
    fractions.Fraction: _fraction,
    **{
        kind: kind
        for kind in (
            datetime.date,
            datetime.time,
            datetime.datetime,
            datetime.timedelta,
            datetime.timezone,
            decimal.Decimal,
            pathlib.PurePosixPath,
            pathlib.PureWindowsPath,
            pathlib.PosixPath,
        )
    },
}

# Functions that replace a function that a pickle calls, by module and name.
CALLS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("array", "_array_reconstructor"): _array,
    ("re", "_compile"): _pattern,
    ("remotegpu_offload.objects.values", "cache_info"): cache_info,
    ("remotegpu_offload.objects.values", "member"): member,
    ("remotegpu_offload.objects.values", "zone"): zone,
    ("remotegpu_offload.objects.values", "standard"): standard,
}

MAKERS.update(
    {kind: kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)}
)

# Types that a value may contain as such ("dtype=float").
TYPES: Final[dict[tuple[str, str], type]] = {
    (kind.__module__, kind.__qualname__): kind for kind in (*_FACTORIES, *MAKERS, uuid.UUID, type(None), array.array)
}
# Constants that a pickle names.
SINGLETONS: Final[dict[tuple[str, str], Any]] = {
    ("builtins", "Ellipsis"): ...,
    ("builtins", "NotImplemented"): NotImplemented,
}
# Types whose instances are made empty and then filled.
INSTANCES: Final = frozenset((uuid.UUID, object))
