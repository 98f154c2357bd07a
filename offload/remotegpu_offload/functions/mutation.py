"""Changes that a call makes to its arguments in the acceptor: finds them, sends them back, and applies them."""

import array
import collections
import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from remotegpu_offload.functions import inplace
from remotegpu_offload.functions.inplace import Place
from remotegpu_offload.objects import pages
from remotegpu_offload.objects.errors import RefusedError

Key = int | str
"""An argument: its position or its keyword."""

Parts = list[tuple[Key, list[tuple[int, bytes]]]]
"""Segments of large arrays that have changed, by argument and index."""
Written = list[tuple[int, Place, bool, Any]]
"""Objects that arguments held before the call, each as: the place of its holder in this list, below 0 for an argument
itself; the object's place within the holder, or the argument's key; whether its state is sent, and that state."""

_IMMUTABLE: Final = (int, float, complex, str, bytes, bool, type(None), type, frozenset, range)
_HEAP: Final = 1 << 9


def may_change(value: Any) -> bool:
    """Returns whether `mutates: auto` watches this argument: not functions, classes, modules and immutable values."""
    if isinstance(value, (*_IMMUTABLE, *inplace.CODE)) or hasattr(type(value), "_remotegpu_stays"):
        return False
    if isinstance(value, tuple):
        return any(may_change(each) for each in value)
    return (
        isinstance(value, (list, dict, set, bytearray, collections.deque, array.array))
        or bool(inplace.library(value))
        or hasattr(value, "__dict__")
        or bool(type(value).__flags__ & _HEAP)
    )


class Watch:
    """The state of some arguments before a call, at the end that executes the call.

    Args:
        digest: hashes the pickled form of a value.
        stays: returns whether an object is not sent by value; then its parts are not watched.
    """

    def __init__(
        self,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        keys: list[Key],
        digest: Callable[[Any], str],
        stays: Callable[[Any], bool],
    ) -> None:
        self._digest = digest
        self._stays = stays
        self._before: dict[Key, tuple[Any, Any]] = {}
        # The objects in the arguments: (index of the holder, place in the holder, object, its type, argument).
        self._held: list[tuple[int, Place, Any, type, Key]] = []
        self._known: set[int] = set()
        for key in keys:
            value = arguments[key] if isinstance(key, int) else keywords[key]
            self._before[key] = (value, self._state(value))
            self._look_into(key, value)

    def _look_into(self, key: Key, value: Any) -> None:
        at = len(self._held)
        self._add(-1, key, value, key)
        while at < len(self._held):
            holder = self._held[at][2]
            if holder is value or not self._stays(holder):
                for place, held in inplace.parts(holder):
                    if type(held) not in inplace.ATOMS and id(held) not in self._known:
                        self._add(at, place, held, key)
            at += 1

    def _add(self, holder: int, place: Place, held: Any, key: Key) -> None:
        self._known.add(id(held))
        self._held.append((holder, place, held, type(held), key))

    def same(self, result: Any) -> Key | None:
        """Returns the key of the argument that is the result; None if no argument is."""
        for key, (value, _) in self._before.items():
            if value is result:
                return key
        return None

    def changes(self, result: Any) -> tuple[Parts, Written]:
        """Returns the changes of the arguments, and the objects that the result shares with them.

        Raises TypeError for an object whose class has changed.
        """
        changed: set[Key] = set()
        parts: Parts = []
        for key, (value, before) in self._before.items():
            after = self._state(value)
            if after == before:
                continue
            if isinstance(after, tuple) and isinstance(before, tuple) and after[:-1] == before[:-1]:
                found = pages.segments(_bytes_of(value))
                names = enumerate(zip(before[-1], after[-1], strict=True))
                parts.append((key, [(index, bytes(found[index])) for index, (old, new) in names if old != new]))
            else:
                changed.add(key)
        return parts, self._copies(changed, result)

    def _copies(self, changed: set[Key], result: Any) -> Written:
        """Returns the watched objects that must be sent.

        They are all objects that a changed argument held before, and those that it or the result holds now.
        """
        told = [result, *(held for _, _, held, _, key in self._held if key in changed)]
        reached = self._reached(told)
        kept: dict[int, int] = {}
        found: Written = []
        wanted = {at for at, (_, _, held, _, _) in enumerate(self._held) if id(held) in reached}
        for at in sorted(self._with_holders(wanted)):
            holder, place, held, kind, _ = self._held[at]
            if at in wanted and type(held) is not kind:
                raise TypeError(
                    f"a {kind.__qualname__} became a {type(held).__qualname__} there: return it instead, and take it "
                    "out of `mutates`"
                )
            kept[at] = len(found)
            found.append((kept.get(holder, -1), place, at in wanted, held if at in wanted else None))
        return found

    def _reached(self, todo: list[Any]) -> set[int]:
        seen: set[int] = set()
        todo = list(todo)
        while todo:
            value = todo.pop()
            if type(value) in inplace.ATOMS or id(value) in seen:
                continue
            seen.add(id(value))
            if not self._stays(value) or any(value is root for root, _ in self._before.values()):
                todo += inplace.inner(value)
        return seen

    def _with_holders(self, wanted: Iterable[int]) -> set[int]:
        found: set[int] = set()
        for at in wanted:
            while at >= 0 and at not in found:
                found.add(at)
                at = self._held[at][0]  # noqa: PLW2901 - continues up to the argument
        return found

    def _state(self, value: Any) -> Any:
        """Returns shape, dtype and segment hashes of a large array; a digest of any other value."""
        if inplace.is_array(value) and not value.dtype.hasobject and value.nbytes >= pages.FLOOR:
            return value.shape, value.dtype.str, [pages.name_of(part) for part in pages.segments(_bytes_of(value))]
        return self._digest(value)


def _bytes_of(array: Any) -> Any:
    """Returns the memory of an array; that of a copy if the array is not contiguous."""
    np = sys.modules["numpy"]
    flat = array if array.flags.c_contiguous else array.T if array.flags.f_contiguous else np.ascontiguousarray(array)
    return memoryview(np.ndarray(flat.nbytes, np.uint8, buffer=flat))


def digest(pieces: list[Any]) -> str:
    """Returns the hash of a pickled value's pieces."""
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return total.hexdigest()


def told(copies: Written) -> tuple[Any, ...]:
    """Returns the objects whose new state is sent."""
    return tuple(held for _, _, is_told, held in copies if is_told)


def apply(changes: tuple[Parts, Written], keys: Iterable[Key], argument: Callable[[Key], Any], result: Any) -> Any:
    """Applies the changes to the arguments. Returns the result, in which objects of the arguments are the originals.

    Raises TypeError if an object cannot take its change; then only large arrays may have changed. Raises RefusedError
    for a change of an argument that is not in `keys`.
    """
    parts, copies = _read(changes)
    asked = {key for key, _ in parts} | {place for holder, place, _, _ in copies if holder < 0}
    if not asked <= set(keys):
        raise RefusedError(f"the acceptor changed {asked - set(keys)!r}, which no `mutates` names")
    for key, segments in parts:
        _apply_parts(argument(key), segments)
    found = inplace.WriteBack()
    originals: list[Any] = []
    within: dict[int, dict[Place, Any]] = {}
    for holder, place, is_told, new in copies:
        if holder < 0:
            original = argument(place)
            if is_told and type(new) is not type(original):
                raise TypeError(
                    f"a {type(original).__qualname__} became a {type(new).__qualname__} there: return it instead, and "
                    "take it out of `mutates`"
                )
        else:
            if holder not in within:
                within[holder] = dict(inplace.parts(originals[holder]))
            # If a part does not exist here, it was never sent: some objects create a part when it is read.
            original = within[holder].get(place)
        originals.append(original)
        if is_told:
            found.pair(original, new)
    return found.write(result) if copies else result


def _read(changes: Any) -> tuple[Parts, Written]:
    """Checks the structure of changes from the untrusted other end. Raises RefusedError."""
    match changes:
        case (list(parts), list(copies)):
            if all(map(_is_part, parts)) and all(_is_copy(one, at) for at, one in enumerate(copies)):
                return parts, copies
    raise RefusedError("the acceptor's changes of arguments are none: run the same version on both ends")


def _is_part(one: Any) -> bool:
    match one:
        case (int() | str(), list(segments)):
            return all(type(each) is tuple and list(map(type, each)) == [int, bytes] for each in segments)
    return False


def _is_copy(one: Any, at: int) -> bool:
    match one:
        case (int(holder), int() | str(), bool(), _):
            return holder < at
    return False


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
