"""Pickles a value: large buffers are stored separately, and objects that are not sent become handles."""

import contextlib
import enum
import functools
import importlib
import io
import pickle
import sys
import types
import zoneinfo
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import cloudpickle

from remotegpu_offload.objects import values, vocabulary
from remotegpu_offload.objects.errors import CrossingError
from remotegpu_offload.objects.pages import FLOOR

if TYPE_CHECKING:
    from remotegpu_offload.objects.codec import Codec

Reducer = Callable[[Any, Any], Any]
"""Type of `reducer_override`: returns what pickle's `__reduce__` returns, or NotImplemented for the usual way."""

reducers: Final[dict[type, Reducer]] = {}
"""Reducers by type, also for types derived from it; `register` adds to it."""

# Modules of this package that handle a library's types; imported with the first value of that library.
LIBRARIES: Final = {
    "numpy": "remotegpu_offload.objects.arrays",
    "scipy": "remotegpu_offload.objects.sparse",
    "pandas": "remotegpu_offload.objects.frames",
    "torch": "remotegpu_offload.torch.values",
}


def register(kind: type, reduce: Reducer) -> None:
    """Registers how values of this type are written. The client must be able to read the result: `restricted.allow`."""
    reducers[kind] = reduce


class Exported:
    """A callable argument that is not sent: the other end gets a handle to it."""

    __slots__ = ("value",)

    def __init__(self, value: Callable[..., Any]) -> None:
        self.value = value


class Resident:
    """An argument that is sent once and then stays in the acceptor. Later calls send only its id."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _Out:
    """A file object that collects the written pieces."""

    def __init__(self) -> None:
        self.pieces: list[bytes | bytearray] = []
        self.buffers: list[pickle.PickleBuffer] = []

    def write(self, piece: bytes | bytearray) -> int:
        """Stores a piece. The pickler passes large bytes and bytearrays without a copy."""
        self.pieces.append(piece)
        return len(piece)

    def beside(self, buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < FLOOR:
            return True
        self.buffers.append(buffer)
        return False


class Encoder(cloudpickle.Pickler):  # type: ignore[misc]
    """The pickler of one message. `pieces` and `buffers` are the output; `sent` holds the ids of exported objects."""

    def __init__(self, codec: "Codec", inside: Sequence[Any] = ()) -> None:
        # A separate object: with itself as its file, the pickler would be in a reference cycle with all its output.
        out = _Out()
        self.pieces = out.pieces
        self.buffers = out.buffers
        self.sent: list[int] = []
        self.kept: list[int] = []
        # Tensors that belong to an object that was sent by reference before: the owner, and the place in it.
        self.parts: dict[int, tuple[Any, str]] | None = None
        # Gradients that are sent like their tensors.
        self.gradients: set[int] = set()
        # True if the output is only compared, and never sent.
        self.comparing = False
        self.codec = codec
        # Objects that are sent by value, even if the other end has handles to them.
        self.inside = {id(value) for value in inside}
        super().__init__(out, protocol=5, buffer_callback=out.beside)

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        known = self.codec.reducers
        reduce = known.get(kind)
        if reduce is None:
            reduce = _find(kind, self.codec)
            # A class of a notebook or function is not stored, so that it can be collected.
            if kind.__module__ != "__main__" and "<" not in kind.__qualname__:
                known[kind] = reduce
        return reduce(self, value)

    def dynamic(self, value: Any) -> Any:
        """Returns cloudpickle's reduction of a function or class: by name if it has one, otherwise by value."""
        return super().reducer_override(value)

    def export(self, value: Any, kind: str, info: Any = None) -> Any:
        """Writes a handle to a local object for the other end."""
        ident = self.codec.exports.export(value, kind)
        self.sent.append(ident)
        return vocabulary.foreign, (ident, kind, info)


def _find(kind: type, codec: "Codec") -> Reducer:
    _load_library(kind)
    found = next((reducers[base] for base in kind.__mro__ if base in reducers), None)
    if not codec.client and codec.resides(kind):
        found = _acceptor_resident
    elif found is None and issubclass(kind, type):
        found = _client_code if codec.client else _acceptor_class
    elif found is None and _is_iterator(kind):
        found = _iterator
    return found or (_client_instance if codec.client else _acceptor_instance)


def _load_library(kind: type) -> None:
    for base in kind.__mro__:
        name = LIBRARIES.get(base.__module__.partition(".")[0])
        if name is not None:
            importlib.import_module(name)


def _is_iterator(kind: type) -> bool:
    """Returns whether a type is a generator or an interpreter's own iterator, whose values can be read only once.

    An instance of an iterator class that is written in Python is copied like any other instance.
    """
    heap = kind.__flags__ & 1 << 9
    return hasattr(kind, "__next__") and hasattr(kind, "__iter__") and not heap


def _client_code(encoder: Encoder, value: Any) -> Any:
    stands_for = encoder.codec.replaced.get(id(value)) or encoder.codec.stands_for(value)
    if stands_for is None:
        return _by_value(encoder, value, encoder.dynamic(value))
    if stands_for.name is not None:
        return vocabulary.named, stands_for.name
    return _by_value(encoder, value, encoder.dynamic(stands_for.function))


def _by_value(encoder: Encoder, value: Any, reduced: Any) -> Any:
    if not isinstance(reduced, tuple):
        return reduced
    function, arguments, *rest = reduced
    return vocabulary.made, (encoder.codec.identify(value), function, arguments), *rest


def _acceptor_class(encoder: Encoder, value: Any) -> Any:
    ident = encoder.codec.came_as(value)
    if ident is not None:
        return vocabulary.came, (ident,)
    reduced = encoder.dynamic(value)
    if isinstance(reduced, tuple):
        raise CrossingError(
            f"the class {value.__qualname__} exists only at the acceptor: define it in a module that both sides have"
        )
    return reduced


def _acceptor_function(encoder: Encoder, value: Any) -> Any:
    ident = encoder.codec.came_as(value)
    if ident is not None:
        return vocabulary.came, (ident,)
    reduced = encoder.dynamic(value)
    return encoder.export(value, "call", _describe(value)) if isinstance(reduced, tuple) else reduced


def _function(encoder: Encoder, value: Any) -> Any:
    return _client_code(encoder, value) if encoder.codec.client else _acceptor_function(encoder, value)


def _method(encoder: Encoder, value: Any) -> Any:
    if encoder.codec.client:
        return NotImplemented
    return encoder.export(value, "call", _describe(value))


def _builtin(encoder: Encoder, value: Any) -> Any:
    # A bound method ("".join, generator.send) holds its instance; a function of a module is found by its name.
    owner = getattr(value, "__self__", None)
    if encoder.codec.client or owner is None or isinstance(owner, type | types.ModuleType):
        return NotImplemented
    return encoder.export(value, "call", _describe(value))


def _describe(value: Any) -> dict[str, str]:
    return {
        "name": str(getattr(value, "__name__", type(value).__name__)),
        "doc": str(getattr(value, "__doc__", None) or ""),
    }


def _exported_call(encoder: Encoder, value: Exported) -> Any:
    return encoder.export(value.value, "call", _describe(value.value))


# A copy of such a value can replace the value.
_ATOMS: Final = (int, float, complex, str, bytes, bool)


def _resident(encoder: Encoder, value: Resident) -> Any:
    kind = type(value.value)
    if kind in _ATOMS:
        return kind, (value.value,)
    if value.value is None:
        return kind, ()
    try:
        ident, known = encoder.codec.residents.ident(value.value)
    except TypeError:
        raise CrossingError(
            f"a {kind.__module__}.{kind.__qualname__}, cannot go by `ref`, for nothing tells when it is no longer "
            "used: pass it by `value`, with `mutates` if the call changes it, or let it be an attribute of an "
            "object that goes by `ref` (a class with `__slots__` has to name `__weakref__` among them)"
        ) from None
    if known:
        return vocabulary.own, (ident,)
    encoder.kept.append(ident)
    return vocabulary.kept, (ident, value.value)


def _iterator(encoder: Encoder, value: Iterator[Any]) -> Any:
    return encoder.export(value, "iter", type(value).__name__)


def is_manager(kind: type) -> bool:
    """Returns whether instances of this type are context managers."""
    return hasattr(kind, "__enter__") and hasattr(kind, "__exit__")


def _manager(encoder: Encoder, value: Any) -> Any:
    return encoder.export(value, "decorator", type(value).__name__)


def _cached(encoder: Encoder, value: Any) -> Any:
    stands_for = encoder.codec.replaced.get(id(value))
    if stands_for is not None:
        return vocabulary.named, stands_for.name
    if encoder.codec.client and (value.__module__ == "__main__" or "<" in value.__qualname__):
        raise CrossingError(
            f"{value.__qualname__}, whose results are cached, is not found by a name at the other end: define it at "
            "the top of a module, or let the cached function call one that a rule names"
        )
    return NotImplemented


def _file(encoder: Encoder, value: io.IOBase) -> Any:
    if type(value) in (io.BytesIO, io.StringIO) and not value.closed:
        return NotImplemented
    for name in ("stdin", "stdout", "stderr"):
        if value is getattr(sys, name):
            return values.standard, (name,)
    info: dict[str, Any] = {"text": isinstance(value, io.TextIOBase)}
    info.update({key: str(getattr(value, key)) for key in ("name", "mode", "encoding") if getattr(value, key, None)})
    return encoder.export(value, "file", info)


def _client_instance(encoder: Encoder, value: Any) -> Any:
    encoder.codec.sent_types.add(type(value))
    return NotImplemented


def _acceptor_resident(encoder: Encoder, value: Any) -> Any:
    if id(value) in encoder.inside:
        return NotImplemented
    return encoder.export(value, "instance", type(value))


def _acceptor_instance(encoder: Encoder, value: Any) -> Any:
    if id(value) in encoder.inside:
        return NotImplemented
    found = encoder.codec.exports.find(value)
    if found is None:
        return NotImplemented
    ident, kind = found
    encoder.sent.append(ident)
    return vocabulary.foreign, (ident, kind, type(value).__qualname__)


def _enum(encoder: Encoder, value: enum.Enum) -> Any:
    if encoder.codec.client:
        encoder.codec.sent_types.add(type(value))
    return values.member, (type(value), value._value_)


def _zone(_encoder: Encoder, value: zoneinfo.ZoneInfo) -> Any:
    return (values.zone, (value.key,)) if value.key is not None else NotImplemented


_OURS: Final[dict[type, Reducer]] = {
    types.FunctionType: _function,
    types.MethodType: _method,
    types.BuiltinFunctionType: _builtin,
    types.GeneratorType: _iterator,
    # These managers hold a generator, which cannot be copied.
    contextlib._GeneratorContextManager: _manager,
    functools._lru_cache_wrapper: _cached,
    functools._CacheInfo: lambda _encoder, value: (values.cache_info, tuple(value)),
    # The abstract base class of io.IOBase, from which all files are derived.
    io.IOBase.__bases__[0]: _file,
    Exported: _exported_call,
    Resident: _resident,
    enum.Enum: _enum,
    zoneinfo.ZoneInfo: _zone,
}
reducers.update(_OURS)
