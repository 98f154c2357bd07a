"""Traverses an object's parts, and makes a local object equal to its changed copy in place.

Both ends traverse an argument in the same order, so that a place (`parts`) refers to the same object at both. A change
at the other end is applied to that very object, even if the object has been moved to another container since.
"""

import array
import collections
import functools
import pickle
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, Final

from remotegpu_offload.objects.codec import HANDLE

Place = int | str
"""The place of a part within an object: its index (in a dictionary twice the entry's index for the key, and one more
for the value), or an attribute's name."""

Write = Callable[[], None]

ATOMS: Final = frozenset((int, float, complex, str, bytes, bool, type(None), range, slice, type(Ellipsis)))
CODE: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    type,
    types.ModuleType,
)
"""Callables that have no state of interest. An object's callables stay the same ones."""

_CONTAINERS: Final = (list, dict, set, bytearray, collections.deque, array.array)
_HEAP: Final = 1 << 9  # a type flag: a class statement created the type


def library(value: Any) -> str:
    """Returns the library (numpy, pandas or torch) that defines the value's type or one of its bases; otherwise ""."""
    for base in type(value).__mro__:
        top = base.__module__.partition(".")[0]
        if top in {"numpy", "pandas", "torch"}:
            return top
    return ""


def is_array(value: Any) -> bool:
    return library(value) == "numpy" and isinstance(value, sys.modules["numpy"].ndarray)


def is_tensor(value: Any) -> bool:
    return library(value) == "torch" and isinstance(value, sys.modules["torch"].Tensor)


def is_frame(value: Any) -> bool:
    """Returns whether the value is a pandas object that can be changed in place. An Index cannot."""
    return library(value) == "pandas" and hasattr(value, "_update_inplace")


def parts(value: Any) -> list[tuple[Place, Any]]:
    """Returns the parts of an object that are not atoms, each with its place.

    Members of sets have no place. Objects with their own pickle format have no parts.
    """
    kind = type(value)
    if is_tensor(value):
        return [("grad", value.grad)] if value.is_leaf and value.grad is not None else []
    if kind in ATOMS or isinstance(value, CODE) or is_frame(value) or HANDLE in _fields(value):
        return []
    found: list[tuple[Place, Any]] = []
    if isinstance(value, (list, tuple, collections.deque)):
        found += _no_atoms(enumerate(value))
    elif isinstance(value, dict):
        found += _no_atoms(enumerate(each for item in dict.items(value) for each in item))
    elif is_array(value):
        if value.dtype.hasobject and not value.dtype.names:
            found += _no_atoms(enumerate(value.flat))
    elif isinstance(value, (set, frozenset, *_CONTAINERS)):
        pass
    elif _has_own_state(kind):
        # The state is a new object each time, but its parts are the object's own.
        return [(f"{place}", held) for place, held in parts(_state(value))]
    elif not _is_plain(kind):
        return []
    return found + _no_atoms(_attributes(value).items())


def _no_atoms(found: Iterable[tuple[Place, Any]]) -> list[tuple[Place, Any]]:
    return [part for part in found if type(part[1]) not in ATOMS]


def inner(value: Any) -> Iterable[Any]:
    """Yields the objects that an object holds, including members of sets."""
    if isinstance(value, (set, frozenset)):
        yield from value
    for _, held in parts(value):
        yield held


def _has_own_state(kind: Any) -> bool:
    return bool(kind.__getstate__ is not object.__getstate__)


def _is_plain(kind: Any) -> bool:
    """Returns whether instances are pickled as their attributes."""
    return bool(kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__)


def _slots(kind: type) -> dict[str, Any]:
    return {
        name: member
        for base in kind.__mro__
        if base.__flags__ & _HEAP
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    }


def _state(value: Any) -> Any:
    """Returns the state of an object whose class defines `__getstate__`; None if the object cannot be pickled."""
    try:
        return value.__getstate__()
    except TypeError:
        return None


def _fields(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(_fields(value))
    for name, member in _slots(type(value)).items():
        try:
            found[name] = member.__get__(value)
        except AttributeError:
            continue
    return found


def _set_attributes(target: Any, wanted: dict[str, Any]) -> None:
    slots = _slots(type(target))
    for name in _attributes(target).keys() - wanted.keys():
        if name in slots:
            slots[name].__delete__(target)
        else:
            del target.__dict__[name]
    for name, value in wanted.items():
        if name in slots:
            slots[name].__set__(target, value)
        else:
            target.__dict__[name] = value


def _is_value(kind: type) -> bool:
    """Returns whether instances cannot change, so that an equal copy can replace them."""
    return issubclass(kind, (tuple, frozenset)) or kind.__hash__ not in (None, object.__hash__)


class WriteBack:
    """Writes the changed copies from the other end into the local objects.

    Call `pair` for each copy, then `write`. `write` changes nothing until all changes are known to be possible.
    """

    def __init__(self) -> None:
        self._originals: dict[int, Any] = {}
        # Keeps the copies alive, so that ids stay unique.
        self._paired: list[Any] = []

    def pair(self, original: Any, new: Any) -> None:
        """Registers `new` as the copy of `original`. Immutable values are not registered: their copies can replace
        them.

        Raises TypeError for an object that changed at the other end and cannot be changed here.
        """
        self._paired.append(new)
        if new is original or type(original) in ATOMS:
            return
        if isinstance(original, CODE):
            self._originals[id(new)] = original
        elif type(original) is type(new):
            if _writable(original):
                self._originals[id(new)] = original
            elif not _is_value(type(original)):
                _same_or_refused(original, new)
                self._originals[id(new)] = original

    def write(self, result: Any) -> Any:
        """Makes the originals equal to their copies. Returns the result. References to copies become references to
        originals.

        Raises TypeError for a change that an object cannot take.
        """
        writes: list[Write] = []
        seen: set[int] = set()
        todo = [*self._paired, result]
        while todo:
            new = todo.pop()
            if type(new) in ATOMS or id(new) in seen:
                continue
            seen.add(id(new))
            target = self._originals.get(id(new), new)
            held = list(inner(new))
            todo += held
            if target is new and all(self._mapped(each) is each for each in held):
                continue
            if isinstance(new, (tuple, frozenset, *CODE)) or isinstance(target, CODE):
                continue
            if (write := self._writing(target, new)) is not None:
                writes.append(write)
        for write in writes:
            write()
        return self._mapped(result)

    def _mapped(self, new: Any) -> Any:
        """Returns the local object for an object that a copy holds."""
        kind = type(new)
        if kind in ATOMS:
            return new
        if id(new) in self._originals:
            return self._originals[id(new)]
        if isinstance(new, tuple):
            items = [self._mapped(each) for each in new]
            if any(one is not other for one, other in zip(items, new, strict=True)):
                made = tuple.__new__(kind, items)
                _set_attributes(made, _attributes(new))
                return made
        elif kind is frozenset and any(self._mapped(each) is not each for each in new):
            return frozenset(map(self._mapped, new))
        return new

    def _writing(self, target: Any, new: Any) -> Write | None:
        """Returns a function that makes `target` equal to `new` when called; None if no change is needed."""
        kind = type(target)
        if is_tensor(target):
            return _tensor(target, new, self._mapped(new.grad) if new.is_leaf else None)
        if is_array(target):
            return self._array(target, new)
        if is_frame(target):
            return functools.partial(target._update_inplace, new)
        if not isinstance(target, _CONTAINERS) and _has_own_state(kind) and hasattr(kind, "__setstate__"):
            state = self._state(new.__getstate__())
            return functools.partial(target.__setstate__, state)
        wanted = {name: self._mapped(held) for name, held in self._wanted(target, new).items()}
        content = self._content(target, new)

        def write() -> None:
            if content is not None:
                content()
            _set_attributes(target, wanted)

        return write if _writable(target) else None

    def _wanted(self, target: Any, new: Any) -> dict[str, Any]:
        if isinstance(target, _CONTAINERS) or not _has_own_state(type(target)):
            return _attributes(new)
        # Attributes that are not sent stay unchanged.
        return {**_attributes(target), **new.__getstate__()}

    def _state(self, state: Any) -> Any:
        if type(state) is dict:
            return {self._mapped(key): self._mapped(held) for key, held in state.items()}
        return [self._mapped(held) for held in state] if type(state) is list else self._mapped(state)

    def _content(self, target: Any, new: Any) -> Write | None:
        """Returns a function that sets a container's content, or None.

        It uses the methods of the builtin type, because those of a derived class may have side effects.
        """
        match target:
            case list():
                items = [self._mapped(each) for each in new]
                return lambda: list.__setitem__(target, slice(None), items)
            case dict():
                entries = [(self._mapped(key), self._mapped(held)) for key, held in dict.items(new)]
                return lambda: _fill(target, new, entries)
            case set():
                members = [self._mapped(each) for each in new]
                return lambda: (set.clear(target), set.update(target, members))[0]
            case collections.deque():
                items = [self._mapped(each) for each in new]
                return lambda: (collections.deque.clear(target), collections.deque.extend(target, items))[0]
            case bytearray() | array.array():
                return lambda: target.__setitem__(slice(None), new[:])
        return None

    def _array(self, target: Any, new: Any) -> Write | None:
        if target is new and not new.dtype.hasobject:
            return None
        if target.shape != new.shape or target.dtype != new.dtype:
            raise TypeError(
                f"an array of shape {target.shape} was resized to {new.shape} there, or has become one of {new.dtype}, "
                "which cannot be done to the array here: return it instead, and take it out of `mutates`"
            )
        wanted = {name: self._mapped(held) for name, held in _attributes(new).items()}
        content = new
        if new.dtype.hasobject and not new.dtype.names:
            content = new.copy()
            for index, held in enumerate(new.flat):
                content.flat[index] = self._mapped(held)

        def write() -> None:
            target[...] = content
            _set_attributes(target, wanted)

        return write


def _writable(value: Any) -> bool:
    """Returns whether an object can be made equal to another of its type."""
    kind = type(value)
    if issubclass(kind, (tuple, frozenset)):
        return False
    if isinstance(value, _CONTAINERS) or is_array(value) or is_tensor(value) or is_frame(value):
        return True
    if _has_own_state(kind):
        return hasattr(kind, "__setstate__") or type(_state(value)) is dict
    # If the class defines its own way of pickling, writing the attributes is enough only without other state.
    return _is_plain(kind) or (bool(_attributes(value)) and _is_written_in_python(kind))


def _is_written_in_python(kind: type) -> bool:
    return next(base for base in kind.__mro__ if not base.__flags__ & _HEAP) is object and "__dict__" in dir(kind)


def _same_or_refused(original: Any, new: Any) -> None:
    try:
        same = pickle.dumps(original) == pickle.dumps(new)
    except Exception:
        same = False
    if not same:
        raise TypeError(
            f"a {type(original).__qualname__} was changed there and cannot be changed here: return it instead, and "
            "take it out of `mutates`"
        )


def _fill(target: Any, new: Any, entries: list[tuple[Any, Any]]) -> None:
    # An OrderedDict stores its order separately.
    kind = collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict
    kind.clear(target)
    for key, held in entries:
        kind.__setitem__(target, key, held)
    if isinstance(target, collections.defaultdict):
        target.default_factory = new.default_factory


def _tensor(target: Any, new: Any, gradient: Any) -> Write | None:
    """Returns a function that changes a tensor in place, so that views of its storage see the change; None if equal."""
    torch = sys.modules["torch"]
    if target is new:
        return None

    def write() -> None:
        with torch.no_grad():
            if target.shape != new.shape or target.dtype != new.dtype:
                target.data = new.detach()
            elif not _equal(target, new):
                target.detach().copy_(new.detach())
            if target.is_leaf and new.is_leaf:
                target.requires_grad_(new.requires_grad)
                if target.grad is not gradient:
                    target.grad = gradient

    return write


def _equal(one: Any, other: Any) -> bool:
    """Compares tensors bit by bit.

    Remote tensors are equal if they share their storage; otherwise they count as different, because a comparison would
    be a round trip.
    """
    torch = sys.modules["torch"]
    if one.device != other.device or one.device.type != "cpu":
        return bool(one.device == other.device and one.data_ptr() == other.data_ptr() != 0)
    bits = [
        each.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for each in (one, other)
    ]
    return bool(torch.equal(*bits))
