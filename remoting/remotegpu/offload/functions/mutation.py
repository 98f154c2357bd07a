"""Arguments that a call has changed there are changed here: what is looked at, what travels back, how it is applied."""

import hashlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from remotegpu.offload.objects import pages

Key = int | str
"""An argument: its position or its keyword."""

_PLAIN: Final = (list, dict, set, bytearray)
_IMMUTABLE: Final = (int, float, complex, str, bytes, bool, type(None), type, frozenset, range)


def may_change(value: Any) -> bool:
    """Whether `mutates: auto` looks at this argument: containers, arrays, frames, and instances with attributes."""
    if isinstance(value, _IMMUTABLE) or callable(value) or hasattr(type(value), "_remotegpu_stays"):
        return False
    return isinstance(value, _PLAIN) or _library(value) in {"numpy", "pandas"} or hasattr(value, "__dict__")


def _library(value: Any) -> str:
    for base in type(value).__mro__:
        top = base.__module__.partition(".")[0]
        if top in {"numpy", "pandas"}:
            return top
    return ""


def _is_array(value: Any) -> bool:
    if _library(value) != "numpy":
        return False
    return isinstance(value, sys.modules["numpy"].ndarray)


class Watch:
    """What some arguments of a call were before it. At the end that executes it."""

    def __init__(
        self, arguments: tuple[Any, ...], keywords: Mapping[str, Any], keys: list[Key], digest: Callable[[Any], str]
    ) -> None:
        self._digest = digest
        self._before: dict[Key, tuple[Any, Any]] = {}
        for key in keys:
            value = arguments[key] if isinstance(key, int) else keywords[key]
            self._before[key] = (value, self._state(value))

    def same(self, result: Any) -> Key | None:
        """Which of the arguments the result is."""
        for key, (value, _) in self._before.items():
            if value is result:
                return key
        return None

    def changes(self) -> list[tuple[Key, str, Any]]:
        """What has changed: (argument, how it is told, what is told)."""
        found: list[tuple[Key, str, Any]] = []
        for key, (value, before) in self._before.items():
            after = self._state(value)
            if after == before:
                continue
            if isinstance(after, list) and len(after) == len(before):
                changed = [index for index, name in enumerate(after) if name != before[index]]
                parts = pages.segments(_bytes_of(value))
                found.append((key, "parts", [(index, bytes(parts[index])) for index in changed]))
            else:
                found.append((key, "value", value))
        return found

    def _state(self, value: Any) -> Any:
        """The names of a large array's segments, else a digest."""
        if _is_array(value) and not value.dtype.hasobject and value.nbytes >= pages.FLOOR:
            return [pages.name_of(part) for part in pages.segments(_bytes_of(value))]
        return self._digest(value)


def _bytes_of(array: Any) -> Any:
    """A contiguous array's memory."""
    np = sys.modules["numpy"]
    flat = array if array.flags.c_contiguous else array.T if array.flags.f_contiguous else np.ascontiguousarray(array)
    return memoryview(np.ndarray(flat.nbytes, np.uint8, buffer=flat))


def digest(pieces: list[Any]) -> str:
    """Of what a value is written as."""
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return total.hexdigest()


def apply(original: Any, how: str, told: Any) -> None:
    """Change an argument as it was changed there.

    Raises TypeError for a change that this kind of object cannot take.
    """
    if how == "parts":
        _apply_parts(original, told)
    elif not _become(original, told, {}):
        raise TypeError(
            f"a {type(original).__qualname__} became a {type(told).__qualname__} there: return it instead, and take it "
            "out of `mutates`"
        )


def _apply_parts(original: Any, parts: list[tuple[int, bytes]]) -> None:
    np = sys.modules["numpy"]
    order = "F" if original.flags.f_contiguous and not original.flags.c_contiguous else "C"
    in_place = original.flags.c_contiguous or original.flags.f_contiguous
    whole = original if in_place else np.ascontiguousarray(original)
    flat = whole.T if order == "F" else whole
    memory = np.ndarray(flat.nbytes, np.uint8, buffer=flat)
    for index, data in parts:
        start = int(index) * pages.SEGMENT
        memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
    if not in_place:
        original[...] = whole


def _become(original: Any, new: Any, seen: dict[int, Any]) -> bool:
    """Make an object equal to another in place, and what it holds likewise where that can be done; else false."""
    if id(original) in seen:
        return True
    if type(original) is not type(new) or isinstance(original, (*_IMMUTABLE, tuple)):
        return False
    seen[id(original)] = original
    match original:
        case list():
            _each(original, list(range(min(len(original), len(new)))), new, seen)
            original[:] = [*original[: len(new)], *new[len(original) :]]
        case dict():
            _each(original, [key for key in original if key in new], new, seen)
            kept = {key: original.get(key, value) for key, value in new.items()}
            original.clear()
            original.update(kept)
        case set():
            original.clear()
            original.update(new)
        case bytearray():
            original[:] = new
        case _ if _is_array(original):
            _become_array(original, new)
        case _ if _library(original) == "pandas":
            original._update_inplace(new)
        case _:
            if not hasattr(original, "__dict__"):
                raise TypeError(
                    f"a {type(original).__qualname__} was changed there and cannot be changed here: return it instead, "
                    "and take it out of `mutates`"
                )
            _become(vars(original), vars(new), seen)
    return True


def _each(original: Any, keys: list[Any], new: Any, seen: dict[int, Any]) -> None:
    for key in keys:
        if original[key] is not new[key] and not _become(original[key], new[key], seen):
            original[key] = new[key]


def _become_array(original: Any, new: Any) -> None:
    if original.shape != new.shape or original.dtype != new.dtype:
        raise TypeError(
            f"an array of shape {original.shape} was resized to {new.shape} there, which cannot be done to the array "
            "here: return it instead, and take it out of `mutates`"
        )
    original[...] = new
