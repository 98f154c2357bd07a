"""Stubs of classes: a stub is a real subclass of the class, and its instances live at the acceptor.

An instance here is a shell with a handle. Its methods, properties, special methods and attributes are those of the
object there. A class that a program derives from it is executed there as a whole, so that methods which the program
overrides are overridden there too.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from remotegpu_offload.config.model import ClassRule
from remotegpu_offload.functions import asynchronous, containers
from remotegpu_offload.functions.mutation import Key
from remotegpu_offload.functions.plan import MARK, Plan, named, outgoing
from remotegpu_offload.objects import encoder, vocabulary
from remotegpu_offload.objects.codec import CALLER, HANDLE, Codec, CrossingError, RefusedError, handle_of
from remotegpu_offload.objects.encoder import Encoder
from remotegpu_offload.objects.table import Handle


class Caller(Protocol):
    """The calls of a session: `client.Client`."""

    codec: Codec

    def send(
        self,
        header: dict[str, Any],
        payload: Any,
        keys: list[Key] | None = None,
        arguments: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
    ) -> Any: ...


_ACCEPTOR: Final = "remotegpu_offload.functions.acceptor"

# They make the shell itself, or are answered by it.
_SHELLS: Final = frozenset((
    "__new__", "__init__", "__del__", "__class__", "__dict__", "__weakref__", "__getattribute__", "__getattr__",
    "__setattr__", "__delattr__", "__init_subclass__", "__subclasshook__", "__class_getitem__", "__reduce__",
    "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__sizeof__", "__dir__",
    "__doc__", "__module__", "__qualname__", "__name__", "__annotations__", "__slots__", "__copy__", "__deepcopy__",
    "__abstractmethods__", "__parameters__", "__orig_bases__", "__match_args__", "__dataclass_fields__",
    "__dataclass_params__", "__static_attributes__", "__firstlineno__",
))  # fmt: skip


class ClassPlan:
    """The plan of one class: how its instances live at the acceptor.

    Attributes:
        original: the class without a stub; instances that are fetched here are of it too.
        name: by which the acceptor finds it; None: it travels by value, as `original`.
    """

    __slots__ = ("caller", "name", "original", "rule")

    def __init__(
        self, original: type, rule: ClassRule, caller: Callable[[], Caller], name: tuple[str, str] | None
    ) -> None:
        self.original = original
        self.rule = rule
        self.caller = caller
        self.name = name

    @property
    def function(self) -> type:
        """The object that travels if it does so by value; named as in a function's plan."""
        return self.original


class Shell:
    """Base of every stub, besides the class itself."""

    __slots__ = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        # Not for shells of another kind, and not for stubs, which are made complete.
        if MARK not in vars(cls) and hasattr(cls, MARK):
            _derive(cls)

    def __getattr__(self, name: str) -> Any:
        # Names that Python and libraries look up on any object are in the class, or do not exist.
        if name in (HANDLE, CALLER) or (name[:2] == "__" and name[-2:] == "__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in (HANDLE, CALLER):
            object.__setattr__(self, name, value)
            return
        call(self, {"op": "call", "t": ["builtins", "setattr"]}, (self, name, outgoing(value)))

    def __delattr__(self, name: str) -> None:
        call(self, {"op": "call", "t": ["builtins", "delattr"]}, (self, name))

    def __dir__(self) -> Any:
        if not hasattr(self, HANDLE):
            return super().__dir__()
        return call(self, {"op": "call", "t": ["builtins", "dir"]}, (self,))

    def __copy__(self) -> Any:
        return _another(self, "copy")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = _another(self, "deepcopy")
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles like the class itself: the file can be read where there is no offload."""
        plain = fetch(self)
        function, arguments, *rest = plain.__reduce_ex__(protocol)
        stub = type(self)
        original = type(plain)
        return function, tuple(stub if each is original else each for each in arguments), *rest

    def __setstate__(self, state: Any) -> None:
        fill(self, state)

    @classmethod
    def _remotegpu_stays(cls, _original: type, name: str) -> bool:
        """Whether this name is the shell's own, not forwarded."""
        return name in _SHELLS

    def _remotegpu_begin(self) -> None:
        """Makes the object of a shell that is used without one: it was made without its constructor."""
        fill(self, None)


def plan_of(kind: type) -> ClassPlan:
    plan: ClassPlan = getattr(kind, MARK)
    return plan


def stub(original: type, rule: ClassRule, caller: Callable[[], Caller], where: str, base: type[Shell] = Shell) -> type:
    """Makes the stub of a class. `where`: the module that gets it; `base`: the shell that the stub inherits from.

    Raises TypeError for a class from which none can be derived.
    """
    namespace: dict[str, Any] = {
        # Where pickle finds it; the class itself may come from another module.
        "__module__": where,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__new__": _new,
        "__signature__": _signature(original),
        MARK: ClassPlan(original, rule, caller, named(original)),
    }
    if base is Shell:
        # Nothing of the object is here.
        namespace["__dict__"] = property(lambda self: attribute(self, "__dict__"))
    if not base._remotegpu_stays(original, "__init__") or base is Shell:
        namespace["__init__"] = _initializer(original)
    members: dict[str, Any] = {}
    for each in reversed(original.__mro__[:-1]):
        members.update(vars(each))
    _forward(namespace, original, members, rule, base)
    made: type = type(original)(original.__name__, (base, original), namespace)
    _stubs[original] = made
    return made


def _signature(kind: type) -> inspect.Signature:
    try:
        return inspect.signature(kind)
    except (TypeError, ValueError):
        return inspect.Signature([inspect.Parameter("arguments", inspect.Parameter.VAR_POSITIONAL)])


def _new(cls: type, *_arguments: Any, **_keywords: Any) -> Any:
    return shell(cls)


def shell(kind: type) -> Any:
    """Makes a shell that has no object yet."""
    try:
        return object.__new__(kind)
    except TypeError:
        # It has a layout of its own.
        original = plan_of(kind).original
        while MARK in vars(original):
            original = plan_of(original).original
        made: Any = original.__new__(kind)  # type: ignore[call-overload]
        return made


def _forward(
    namespace: dict[str, Any], original: type, members: Mapping[str, Any], rule: ClassRule, base: type[Shell]
) -> None:
    for name, member in members.items():
        if base._remotegpu_stays(original, name):
            continue
        if name == "__hash__" and member is None:
            namespace[name] = None
        elif isinstance(member, staticmethod | classmethod):
            namespace[name] = _class_level(original, name, member, rule)
        elif hasattr(member, "check") and hasattr(member, "fn"):
            namespace[name] = _Conditional(name, member, rule)
        elif callable(member) or isinstance(member, _METHODS):
            namespace[name] = method(name, member, rule)
        elif not (name[:2] == "__" and name[-2:] == "__"):
            namespace[name] = _Attribute(name, member)


# Methods that cannot be called themselves; other descriptors, as cached properties, are attributes.
_METHODS: Final = (functools.partialmethod, functools.singledispatchmethod)


def method(name: str, function: Any, rule: ClassRule) -> Callable[..., Any]:
    """Returns a method that runs at the acceptor."""
    plan = Plan(function, rule, None, name)
    leaving = name in ("__exit__", "__aexit__")

    def forwarder(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if leaving:
            # A traceback stays here.
            arguments = (*arguments[:2], None)
        given = (self, *arguments)
        sent, sent_keywords, keys = plan.arguments(given, keywords)
        if keys is not None:
            # Passing an exception along does not change it either.
            keys = None if leaving else [key for key in keys if key != 0]
        return caller_of(self).send(dict(plan.header), (sent, sent_keywords), keys, given, keywords)

    made: Callable[..., Any] = _looking_like(asynchronous.like(function, forwarder), name, function)
    return made


def _looking_like(forwarder: Any, name: str, function: Any) -> Any:
    try:
        return functools.wraps(function)(forwarder)
    except (AttributeError, TypeError):
        forwarder.__name__ = name
        return forwarder


def _class_level(original: type, name: str, member: Any, rule: ClassRule) -> Any:
    plan = Plan(member.__func__, rule, None, name)

    def forwarder(*arguments: Any, **keywords: Any) -> Any:
        of_class = isinstance(member, classmethod)
        holder = arguments[0] if of_class else _stubs[original]
        sent, sent_keywords, _ = plan.arguments(arguments[1:] if of_class else arguments, keywords)
        return plan_of(holder).caller().send(dict(plan.header), ((holder, *sent), sent_keywords))

    return type(member)(_looking_like(forwarder, name, member.__func__))


# The stub of each class.
_stubs: Final[dict[type, type]] = {}


class _Attribute:
    """A property, or a value that all instances share unless one has its own: the object at the acceptor decides."""

    def __init__(self, name: str, member: Any) -> None:
        self._name = name
        self._member = member
        self.__doc__ = getattr(member, "__doc__", None)

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self._member.__get__(None, owner) if hasattr(self._member, "__get__") else self._member
        return attribute(instance, self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        Shell.__setattr__(instance, self._name, value)

    def __delete__(self, instance: Any) -> None:
        Shell.__delattr__(instance, self._name)


class _Conditional:
    """A method that only some instances have: a check that reads their attributes decides."""

    def __init__(self, name: str, member: Any, rule: ClassRule) -> None:
        self._member = member
        self._method = method(name, member.fn, rule)
        self.__doc__ = getattr(member, "__doc__", None)

    def __get__(self, instance: Any, owner: type) -> Any:
        # Raises AttributeError where it is not there.
        found = self._member.__get__(instance, owner)
        return found if instance is None else self._method.__get__(instance, owner)


def _initializer(original: type) -> Callable[..., None]:
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: N807
        create(self, arguments, keywords)

    written: Any = original.__init__  # type: ignore[misc] # the class's own, not an instance's
    return _looking_like(__init__, "__init__", written) if inspect.isfunction(written) else __init__


def create(self: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Makes the object at the acceptor, under an id of this side."""
    kind = type(self)
    plan = plan_of(kind)
    client = plan.caller()
    function = Plan(plan.original, plan.rule, plan.name)
    sent, sent_keywords, _ = function.arguments(arguments, keywords)
    ident = client.codec.exports.mint()
    header = {**function.header, "id": ident, "kind": "instance"}
    header.pop("returns", None)
    payload = (sent, sent_keywords) if plan.name is not None else (kind, sent, sent_keywords)
    client.send(header, payload)
    adopt(self, client, client.codec.held.handle(ident, "instance"))


def adopt(self: Any, client: Caller, handle: Handle) -> None:
    """Makes this shell stand for the object of the handle."""
    object.__setattr__(self, HANDLE, handle)
    object.__setattr__(self, CALLER, client)
    client.codec.held.stands(handle.ident, self)


def fill(self: Any, state: Any, how: str = "filled") -> None:
    """Makes the object of an instance that was made without its constructor and given this state, as unpickling does.

    `how`: the acceptor's function for it.
    """
    client = plan_of(type(self)).caller()
    ident = client.codec.exports.mint()
    target = [_ACCEPTOR, how]
    client.send({"op": "call", "t": target, "id": ident, "kind": "instance"}, ((type(self), state), {}))
    adopt(self, client, client.codec.held.handle(ident, "instance"))


def fetch(self: Any) -> Any:
    """Fetches an ordinary instance of the class that is a copy of the object at the acceptor."""
    caller_of(self)
    plain: Any = call(self, {"op": "copy"}, (self,))
    return plain


def call(self: Any, header: dict[str, Any], arguments: tuple[Any, ...]) -> Any:
    """Sends a request about this object."""
    payload = arguments if header["op"] == "copy" else (arguments, {})
    return caller_of(self).send(header, payload)


def attribute(self: Any, name: str) -> Any:
    """Returns the attribute of the object at the acceptor."""
    return containers.taken(call(self, {"op": "call", "t": [_ACCEPTOR, "attribute"]}, (self, name)))


def caller_of(self: Any) -> Caller:
    """Returns the calls of the session in which the object lives."""
    try:
        client: Caller = object.__getattribute__(self, CALLER)
    except AttributeError:
        self._remotegpu_begin()
        client = object.__getattribute__(self, CALLER)
    return client


def _another(self: Any, how: str) -> Any:
    client = caller_of(self)
    ident = client.codec.exports.mint()
    client.send({"op": "call", "t": ["copy", how], "id": ident, "kind": "instance"}, ((self,), {}))
    made = shell(type(self))
    adopt(made, client, client.codec.held.handle(ident, "instance"))
    return made


def received(client: Caller, handle: Handle, kind: Any) -> Any:
    """Returns the shell for an instance that was made at the acceptor."""
    stands = _stubs.get(kind) if isinstance(kind, type) else None
    if stands is None:
        raise RefusedError(f"the acceptor sent an instance of {kind!r}, which no rule names")
    made = shell(stands)
    object.__setattr__(made, HANDLE, handle)
    object.__setattr__(made, CALLER, client)
    return made


def _derive(cls: type) -> None:
    """Prepares a class that the program derived from a stub: its methods run at the acceptor too, as the program wrote
    them."""
    base = next(each for each in cls.__mro__[1:] if MARK in vars(each))
    plan = plan_of(base)
    written = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    bases = tuple(plan_of(each).original if hasattr(each, MARK) else each for each in cls.__bases__)
    # Its methods say `super()` by a cell that holds the class of this program, which travels as this twin does.
    twin = type(plan.original)(cls.__name__, bases, dict(written))
    setattr(cls, MARK, ClassPlan(twin, plan.rule, plan.caller, named(cls)))
    _stubs[twin] = cls
    type.__setattr__(cls, "__signature__", _signature(twin))
    members: dict[str, Any] = {}
    _forward(members, twin, written, plan.rule, cls)
    if "__init__" in written and "__init__" in vars(base):
        members["__init__"] = _initializer(twin)
    for name, value in members.items():
        setattr(cls, name, value)


def plain(value: Any) -> Any:
    """Returns the original class of a stub, for an instance that is to be here; any other value as it is."""
    return plan_of(value).original if isinstance(value, type) and issubclass(value, Shell) else value


def _reduce(writer: Encoder, value: Any) -> Any:
    client = caller_of(value)
    if client.codec is not writer.codec:
        raise CrossingError(f"a {type(value).__qualname__} lives at another acceptor: send a copy.deepcopy of it here")
    return vocabulary.own, (handle_of(value).ident,)


encoder.register(Shell, _reduce)
