"""Stubs of classes. A stub is a real subclass of the class, and its instances exist in the acceptor.

A local instance is a shell with a handle. Its methods, properties, special methods and attributes are forwarded to the
object in the acceptor. A class that a program derives from a stub runs in the acceptor as a whole, so that its
overridden methods are overridden there too.
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
    """The interface of `client.Client` that stubs use: the calls of a session."""

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

# Names that create the shell, or that the shell answers itself.
_SHELLS: Final = frozenset((
    "__new__", "__init__", "__del__", "__class__", "__dict__", "__weakref__", "__getattribute__", "__getattr__",
    "__setattr__", "__delattr__", "__init_subclass__", "__subclasshook__", "__class_getitem__", "__reduce__",
    "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__sizeof__", "__dir__",
    "__doc__", "__module__", "__qualname__", "__name__", "__annotations__", "__slots__", "__copy__", "__deepcopy__",
    "__abstractmethods__", "__parameters__", "__orig_bases__", "__match_args__", "__dataclass_fields__",
    "__dataclass_params__", "__static_attributes__", "__firstlineno__",
))  # fmt: skip


class ClassPlan:
    """The plan of one class: how its instances are created and called in the acceptor.

    Attributes:
        original: the class without a stub, also of instances that are fetched here.
        name: the name by which the acceptor finds the class; None: `original` is sent by value.
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
        """The object that is sent by value; the attribute has the same name in a function's plan."""
        return self.original


class Shell:
    """The base class of every stub, besides the original class."""

    __slots__ = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        # Skips classes without a plan, and stubs, which are created complete.
        if MARK not in vars(cls) and hasattr(cls, MARK):
            _derive(cls)

    def __getattr__(self, name: str) -> Any:
        # Special names are defined in the class, or do not exist: Python and libraries look them up on any object.
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
        """Pickles an ordinary copy of the object, so that the file can be read without offload."""
        plain = fetch(self)
        function, arguments, *rest = plain.__reduce_ex__(protocol)
        stub = type(self)
        original = type(plain)
        return function, tuple(stub if each is original else each for each in arguments), *rest

    def __setstate__(self, state: Any) -> None:
        fill(self, state)

    @classmethod
    def _remotegpu_stays(cls, _original: type, name: str) -> bool:
        """Returns whether the shell itself handles this name and does not forward it."""
        return name in _SHELLS

    def _remotegpu_begin(self) -> None:
        """Creates the object for a shell that was made without its constructor."""
        fill(self, None)


def plan_of(kind: type) -> ClassPlan:
    plan: ClassPlan = getattr(kind, MARK)
    return plan


def stub(original: type, rule: ClassRule, caller: Callable[[], Caller], where: str, base: type[Shell] = Shell) -> type:
    """Makes the stub of a class. `where`: the module that receives the stub; `base`: the stub's shell class.

    Raises TypeError if the class cannot be subclassed.
    """
    namespace: dict[str, Any] = {
        # Pickle finds the stub in this module; the class itself may be defined in another one.
        "__module__": where,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__new__": _new,
        "__signature__": _signature(original),
        MARK: ClassPlan(original, rule, caller, named(original)),
    }
    if base is Shell:
        # The shell holds no attributes of the object.
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
        # The class has a memory layout of its own.
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


# Method descriptors that are not callable. Other descriptors, such as cached properties, are attributes.
_METHODS: Final = (functools.partialmethod, functools.singledispatchmethod)


def method(name: str, function: Any, rule: ClassRule) -> Callable[..., Any]:
    """Returns a method that runs in the acceptor."""
    plan = Plan(function, rule, None, name)
    leaving = name in ("__exit__", "__aexit__")

    def forwarder(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if leaving:
            # Tracebacks are not sent.
            arguments = (*arguments[:2], None)
        given = (self, *arguments)
        sent, sent_keywords, keys = plan.arguments(given, keywords)
        if keys is not None:
            # Passing an exception to `__exit__` does not change the exception.
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


# The stubs, by their original classes.
_stubs: Final[dict[type, type]] = {}


class _Attribute:
    """A property or class attribute. The object in the acceptor provides the value."""

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
    """A method that only some instances have: a check of their attributes decides."""

    def __init__(self, name: str, member: Any, rule: ClassRule) -> None:
        self._member = member
        self._method = method(name, member.fn, rule)
        self.__doc__ = getattr(member, "__doc__", None)

    def __get__(self, instance: Any, owner: type) -> Any:
        # Raises AttributeError if the instance does not have the method.
        found = self._member.__get__(instance, owner)
        return found if instance is None else self._method.__get__(instance, owner)


def _initializer(original: type) -> Callable[..., None]:
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: N807
        create(self, arguments, keywords)

    written: Any = original.__init__  # type: ignore[misc] # the class's own, not an instance's
    return _looking_like(__init__, "__init__", written) if inspect.isfunction(written) else __init__


def create(self: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Creates the object in the acceptor, under an id that this side chooses."""
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
    """Connects this shell to the object of the handle."""
    object.__setattr__(self, HANDLE, handle)
    object.__setattr__(self, CALLER, client)
    client.codec.held.stands(handle.ident, self)


def fill(self: Any, state: Any, how: str = "filled") -> None:
    """Creates the object for an instance that was made without its constructor and given this state, as unpickling
    does.

    `how`: the acceptor's function that creates it.
    """
    client = plan_of(type(self)).caller()
    ident = client.codec.exports.mint()
    target = [_ACCEPTOR, how]
    client.send({"op": "call", "t": target, "id": ident, "kind": "instance"}, ((type(self), state), {}))
    adopt(self, client, client.codec.held.handle(ident, "instance"))


def fetch(self: Any) -> Any:
    """Returns an ordinary local instance of the class: a copy of the object in the acceptor."""
    caller_of(self)
    plain: Any = call(self, {"op": "copy"}, (self,))
    return plain


def call(self: Any, header: dict[str, Any], arguments: tuple[Any, ...]) -> Any:
    """Sends a request about this object, and returns the result."""
    payload = arguments if header["op"] == "copy" else (arguments, {})
    return caller_of(self).send(header, payload)


def attribute(self: Any, name: str) -> Any:
    """Returns the attribute of the object in the acceptor."""
    return containers.taken(call(self, {"op": "call", "t": [_ACCEPTOR, "attribute"]}, (self, name)))


def caller_of(self: Any) -> Caller:
    """Returns the calls of the object's session. Creates the object if the shell has none."""
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
    """Returns the shell for an instance that was created in the acceptor."""
    stands = _stubs.get(kind) if isinstance(kind, type) else None
    if stands is None:
        raise RefusedError(f"the acceptor sent an instance of {kind!r}, which no rule names")
    made = shell(stands)
    object.__setattr__(made, HANDLE, handle)
    object.__setattr__(made, CALLER, client)
    return made


def _derive(cls: type) -> None:
    """Prepares a class that the program derived from a stub, so that the program's own methods run in the acceptor
    too."""
    base = next(each for each in cls.__mro__[1:] if MARK in vars(each))
    plan = plan_of(base)
    written = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    bases = tuple(plan_of(each).original if hasattr(each, MARK) else each for each in cls.__bases__)
    # Methods that call `super()` refer to the program's class in a cell; that class is sent as this twin.
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
    """Returns the original class of a stub, for creating a local instance; any other value unchanged."""
    return plan_of(value).original if isinstance(value, type) and issubclass(value, Shell) else value


def _reduce(writer: Encoder, value: Any) -> Any:
    client = caller_of(value)
    if client.codec is not writer.codec:
        raise CrossingError(f"a {type(value).__qualname__} lives at another acceptor: send a copy.deepcopy of it here")
    return vocabulary.own, (handle_of(value).ident,)


encoder.register(Shell, _reduce)
