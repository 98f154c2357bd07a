"""Avoids sending a function by value again (such as one of `__main__`) while its content has not changed."""

import dis
import threading
import types
import weakref
from collections.abc import Iterable
from typing import Any, Final

from cloudpickle import cloudpickle

_ATOMS: Final = (
    *(int, float, complex, str, bytes, bool, types.NoneType),
    *(types.BuiltinFunctionType, types.ModuleType, types.CodeType),
)
_MOST: Final = 64  # most objects to which a function refers
# Instructions whose effects the next call would find, although the program itself has not made these changes.
_STORES: Final = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR")
_STORES_OUTSIDE: Final = ("STORE_DEREF", "DELETE_DEREF")


class Sent:
    """The functions that one acceptor already has. Their numbers come from the codec."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._gone: list[int] = []
        self._lock = threading.Lock()

    def has(self, function: Any, content: list[Any]) -> bool:
        """Returns whether the function was sent with this content: the very same objects."""
        before = self._seen.get(function)
        return (
            before is not None
            and len(before) == len(content)
            and all(one is other for one, other in zip(before, content, strict=True))
        )

    def add(self, function: Any, number: int, content: list[Any]) -> None:
        """Records that the acceptor has the function."""
        with self._lock:
            if function not in self._seen:
                weakref.finalize(function, self._gone.append, number).atexit = False
            self._seen[function] = content

    def gone(self) -> list[int]:
        """Returns the numbers of functions that were garbage-collected since the last call."""
        if not self._gone:
            return []
        with self._lock:
            gone, self._gone[:] = self._gone[:], []
        return gone

    def clear(self) -> None:
        """Forgets all functions, because a new acceptor has none of them."""
        with self._lock:
            self._seen.clear()
            self._gone.clear()


def content(function: types.FunctionType) -> list[Any] | None:
    """Returns all objects that a function consists of and refers to; None if one of them can change in place.

    Also None for a function that changes objects to which it refers: each call must begin with the program's own
    values.
    """
    found: list[Any] = []
    # Leaves out the function itself, which the record would keep alive.
    return found[1:] if _collect(function, found) else None


def _collect(value: Any, found: list[Any]) -> bool:
    if any(value is each for each in found):
        return True
    found.append(value)
    match value:
        case tuple():
            parts: Iterable[Any] | None = value if type(value) is tuple else None
        case type():
            parts = () if cloudpickle._should_pickle_by_reference(value) else None
        case types.FunctionType():
            parts = () if cloudpickle._should_pickle_by_reference(value) else _parts(value)
        case _:
            parts = () if type(value) in _ATOMS else None
    return parts is not None and len(found) <= _MOST and all(_collect(part, found) for part in parts)


def _parts(function: types.FunctionType) -> list[Any] | None:
    """Returns the parts of a function that is sent by value; None if they can change in place."""
    code = function.__code__
    if vars(function) or _changes_things(code):
        return None
    try:
        held = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:
        # A variable of the closure has no value yet.
        return None
    space = function.__globals__
    held += [space[name] for name in cloudpickle._extract_code_globals(code) if name in space]
    return [code, function.__defaults__, *(function.__kwdefaults__ or {}).values(), *held]


_changing: Final[weakref.WeakKeyDictionary[types.CodeType, bool]] = weakref.WeakKeyDictionary()


def _changes_things(code: types.CodeType) -> bool:
    known = _changing.get(code)
    if known is None:
        known = _changing[code] = any(
            step.opname in _STORES or (step.opname in _STORES_OUTSIDE and step.argval in code.co_freevars)
            for step in dis.get_instructions(code)
        ) or any(_changes_things(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return known
