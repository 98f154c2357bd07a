"""Unpickles an acceptor's values without letting the acceptor execute anything in the client.

A pickle is a program. This unpickler calls only functions of the lists in this module. It makes instances only of
classes that this program has sent or that a rule names, and without their constructors. It changes only objects that
the same pickle has made. With `trust: full`, the client uses Python's unpickler instead.
"""

import copyreg
import enum
import importlib
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterable, MutableSet, Sequence
from typing import Any, ClassVar, Final, NoReturn

from remotegpu_offload.objects import values, vocabulary
from remotegpu_offload.objects.encoder import LIBRARIES
from remotegpu_offload.objects.errors import RefusedError, UnknownObjectError
from remotegpu_offload.objects.pages import Buffer
from remotegpu_offload.objects.plain import is_plain

calls: Final[dict[tuple[str, str], Callable[..., Any]]] = dict(values.CALLS)
types_taken: Final[dict[tuple[str, str], type]] = dict(values.TYPES)

# Only functions of this package make values of these libraries, because the libraries' own pickles write memory without
# checks.
_OWN_WAY: Final = frozenset(("numpy", "scipy", "pandas", "torch"))


def allow(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets an acceptor's values call this function, which must be safe with any arguments."""
    calls[function.__module__, function.__qualname__] = function
    return function


def allow_type(kind: type) -> None:
    """Lets an acceptor's values contain this type. This alone does not permit instances of the type."""
    types_taken[kind.__module__, kind.__qualname__] = kind


class Policy:
    """Decides which classes the restricted unpickler accepts: those that this program has sent or whose package a rule
    names."""

    def __init__(self, sent: MutableSet[type], packages: Iterable[str], plain: Callable[[Any], Any]) -> None:
        self._plain = plain
        self._sent = sent
        self._packages = {name for name in packages if name not in _OWN_WAY and name not in sys.stdlib_module_names}

    def find(self, module: str, name: str) -> Any:
        """Returns the class or function of this name. Does not import modules; the name must be that of the definition.

        Raises RefusedError.
        """
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            # A module's attribute may be another module, which would give access to any name.
            found = vars(found).get(part) if isinstance(found, types.ModuleType | type) else None
            if isinstance(found, types.ModuleType):
                found = None
        itself = (getattr(found, "__module__", None), getattr(found, "__qualname__", None)) == (module, name)
        ours = self._package(module)
        if isinstance(found, type):
            taken = ours or found in self._sent or self._plain(found) in self._sent
        else:
            taken = ours and isinstance(found, types.FunctionType | types.BuiltinFunctionType)
        if not (itself and taken):
            _refuse(f"{module}.{name}")
        return self._plain(found)

    def _package(self, module: str) -> bool:
        return module.partition(".")[0] in self._packages

    def instances(self, kind: Any) -> bool:
        """Returns whether the unpickler may make instances of a class that `find` has returned."""
        return (
            isinstance(kind, type)
            and not issubclass(kind, type)
            and (kind in values.INSTANCES or kind in self._sent or self._package(kind.__module__))
        )


def _refuse(what: str) -> NoReturn:
    raise RefusedError(
        f"the acceptor's answer holds {what}, which is not taken from an acceptor: return plain values or arrays, name "
        "its class in a rule of remotegpu.yaml, or write `trust: full` there if you trust this appliance"
    )


def _load(module: str) -> None:
    """Imports the module of this package with that name, or the one for that library; the module extends the lists."""
    ours = LIBRARIES.get(module.partition(".")[0], module)
    if ours in LIBRARIES.values() and ours not in sys.modules:
        importlib.import_module(ours)


class _Call:
    """A listed function as a value of a pickle. Not callable, so that no other code can call it."""

    __slots__ = ("function", "name")

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function = function
        self.name = name


# Up to this size, the restricted unpickler is faster than the check for plain values.
_SMALL: Final = 4096
# Most tuples within a key of a dictionary or a member of a set. Hashing visits all of them recursively.
_KEY_PARTS: Final = 10_000


def _hashed(keys: Iterable[Any]) -> None:
    for key in keys:
        if type(key) not in (tuple, frozenset):
            continue
        parts, looked_at = [key], 0
        while parts:
            looked_at += 1
            if looked_at > _KEY_PARTS:
                _refuse("a key of too many parts")
            parts += [part for part in parts.pop() if type(part) in (tuple, frozenset)]


# The reference count of an object that only a variable holds, as `sys.getrefcount` reports it.
_ALONE: Final = 2


class Unpickler(pickle._Unpickler):
    """The restricted unpickler for one message."""

    # Attributes that pickle's own class defines.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]
    readinto: Callable[[bytearray], int]
    dispatch: ClassVar[dict[int, Callable[..., None]]]

    def __init__(
        self, stream: bytes, buffers: Sequence[Buffer], policy: Policy, contextual: dict[str, Callable[..., Any]]
    ) -> None:
        super().__init__(io.BytesIO(stream), buffers=iter(buffers))
        self._size = len(stream)
        self._policy = policy
        self._contextual = contextual
        # Objects that this pickle has made and may change, by id. Kept alive, so that ids stay unique.
        self._fresh: dict[int, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == vocabulary.__name__:
            if name not in self._contextual:
                _refuse(f"{module}.{name}")
            return _Call(self._contextual[name], name)
        _load(module)
        kind = types_taken.get((module, name)) or values.SINGLETONS.get((module, name))
        if kind is not None:
            return kind
        function = calls.get((module, name))
        if function is not None:
            return _Call(function, name)
        return self._policy.find(module, name)

    def _new(self, value: Any) -> Any:
        self._fresh[id(value)] = value
        return value

    def _changeable(self, value: Any, *exact: type) -> Any:
        if type(value) not in exact and id(value) not in self._fresh:
            _refuse(f"a change of a {type(value).__qualname__} that it has not made")
        return value

    def reduce(self) -> None:
        arguments = self.stack.pop()
        function = self.stack[-1]
        if type(arguments) is not tuple:
            _refuse("a call without arguments")
        if type(function) is _Call:
            self.stack[-1] = function.function(*arguments)
        elif isinstance(function, type):
            made = self._construct(function, arguments)
            # An object with other references, such as a member of an enumeration, existed before.
            self.stack[-1] = self._new(made) if sys.getrefcount(made) <= _ALONE else made
        else:
            _refuse(f"a call of {getattr(function, '__qualname__', type(function).__qualname__)}")

    def _construct(self, kind: type, arguments: tuple[Any, ...]) -> Any:
        maker = values.MAKERS.get(kind)
        if maker is not None:
            return maker(*arguments)
        if issubclass(kind, enum.Enum) and self._policy.instances(kind):
            return values.member(kind, *arguments)
        if issubclass(kind, BaseException) and self._policy.instances(kind):
            error = kind.__new__(kind, *arguments)
            error.args = arguments
            return error
        # The constructor is called only if the class itself defines its pickling that way.
        own_way = kind in copyreg.dispatch_table or any(
            not vars(base).keys().isdisjoint(("__reduce__", "__reduce_ex__")) for base in kind.__mro__[:-1]
        )
        if not self._policy.instances(kind) or not own_way:
            _refuse(f"a call of {kind.__module__}.{kind.__qualname__}")
        return kind(*arguments)

    def new_object(self) -> None:
        arguments = self.stack.pop()
        self._make(self.stack.pop(), arguments, {})

    def new_object_ex(self) -> None:
        keywords = self.stack.pop()
        arguments = self.stack.pop()
        self._make(self.stack.pop(), arguments, keywords)

    def _make(self, kind: Any, arguments: Any, keywords: Any) -> None:
        if not self._policy.instances(kind):
            _refuse(f"an instance of {getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}")
        self.append(self._new(kind.__new__(kind, *arguments, **keywords)))

    def build(self) -> None:
        self._changeable(self.stack[-2])
        pickle._Unpickler.load_build(self)  # type: ignore[attr-defined]

    def append_one(self) -> None:
        value = self.stack.pop()
        self._changeable(self.stack[-1], list).append(value)

    def append_all(self) -> None:
        items = self.pop_mark()
        self._changeable(self.stack[-1], list).extend(items)

    def add_all(self) -> None:
        items = self.pop_mark()
        _hashed(items)
        self._changeable(self.stack[-1], set).update(items)

    def set_one(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        _hashed((key,))
        self._changeable(self.stack[-1], dict)[key] = value

    def set_all(self) -> None:
        items = self.pop_mark()
        _hashed(items[::2])
        target = self._changeable(self.stack[-1], dict)
        for index in range(0, len(items), 2):
            target[items[index]] = items[index + 1]

    def frozen_set(self) -> None:
        items = self.pop_mark()
        _hashed(items)
        self.append(frozenset(items))

    def byte_array(self) -> None:
        length = int.from_bytes(self.read(8), "little")
        # The size is checked, because the memory is allocated before the data is read.
        if length > self._size:
            _refuse("a length beyond its own end")
        data = bytearray(length)
        self.readinto(data)
        self.append(data)


# Instructions of pickle that only make plain values and store them. Left out are those that pickle does not write since
# protocol 4, extension codes, and persistent ids.
_PLAIN: Final = (
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.NONE, pickle.NEWTRUE,
    pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.LONG4, pickle.BINFLOAT,
    pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8, pickle.SHORT_BINBYTES, pickle.BINBYTES,
    pickle.BINBYTES8, pickle.EMPTY_LIST, pickle.EMPTY_TUPLE, pickle.EMPTY_DICT, pickle.EMPTY_SET,
    pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET,
    pickle.STACK_GLOBAL, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER,
)  # fmt: skip

Unpickler.dispatch = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _PLAIN} | {
    pickle.REDUCE[0]: Unpickler.reduce,
    pickle.NEWOBJ[0]: Unpickler.new_object,
    pickle.NEWOBJ_EX[0]: Unpickler.new_object_ex,
    pickle.BUILD[0]: Unpickler.build,
    pickle.APPEND[0]: Unpickler.append_one,
    pickle.APPENDS[0]: Unpickler.append_all,
    pickle.ADDITEMS[0]: Unpickler.add_all,
    pickle.FROZENSET[0]: Unpickler.frozen_set,
    pickle.SETITEM[0]: Unpickler.set_one,
    pickle.SETITEMS[0]: Unpickler.set_all,
    pickle.BYTEARRAY8[0]: Unpickler.byte_array,
}


def loads(stream: bytes, buffers: Sequence[Buffer], policy: Policy, contextual: dict[str, Callable[..., Any]]) -> Any:
    """Unpickles a value. Raises RefusedError if the value contains something that is not accepted."""
    try:
        if len(stream) > _SMALL and not buffers and is_plain(stream):
            return pickle.loads(stream)  # noqa: S301 - the pickle makes only plain values
        return Unpickler(stream, buffers, policy, contextual).load()
    except (RefusedError, UnknownObjectError):
        raise
    except Exception as error:
        raise RefusedError(
            f"the acceptor's answer cannot be read ({type(error).__name__}: {error}): it is damaged, or no acceptor's; "
            "nothing of it was run. Compare both ends' versions with `remotegpu version`"
        ) from error
