"""Plans how one function's calls are sent: applies its rule to its signature."""

import inspect
import re
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from remotegpu_offload.config.model import ClassRule, FunctionRule
from remotegpu_offload.functions import inplace, mutation
from remotegpu_offload.functions.mutation import Key
from remotegpu_offload.objects.encoder import Exported, Resident
from remotegpu_offload.objects.errors import CrossingError

_LOOKED_INTO: Final = 64  # longer containers are data and are not searched for callbacks

_FUNCTIONS: Final = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, partial)

# The path of an argument in the message: the argument tuple or keywords, after the function if that is sent too.
_PLACE: Final = re.compile(r"\[(\d)\]\[('.*?'|\d+)\]")

MARK: Final = "__remotegpu__"
"""The attribute that marks the stub of a function or class; its plan has `name` and `function`."""


class Plan:
    """The plan of one callable.

    Attributes:
        name: module and qualified name by which the acceptor finds the callable; None: it is sent by value.
        header: the header of its calls.
    """

    __slots__ = ("_parameters", "_rule", "_simple", "function", "header", "name")

    def __init__(
        self, function: Any, rule: FunctionRule | ClassRule, name: tuple[str, str] | None, method: str = ""
    ) -> None:
        self.function = function
        self.name = name
        self._rule = rule
        self._simple = not rule.args and rule.mutates in ("none", ())
        self._parameters: list[str] | None = None
        self.header: dict[str, Any] = {"op": "call"}
        if method:
            # The callable is a method of the first argument.
            self.header["m"] = method
        elif name is not None:
            self.header["t"] = list(name)
        if rule.returns != "value":
            self.header["returns"] = rule.returns

    def arguments(
        self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Key] | None]:
        """Returns the arguments to send, and the keys of those that are watched for changes; None if no argument is."""
        if self._simple:
            return (
                tuple([outgoing(value) for value in arguments]),
                {name: outgoing(value) for name, value in keywords.items()},
                None,
            )
        names = self._names()
        rule = self._rule
        # Further positional arguments belong to *args.
        positions = [names[index] if index < len(names) else "" for index in range(len(arguments))]
        sent = tuple([_by_mode(value, rule.mode(name)) for value, name in zip(arguments, positions, strict=True)])
        sent_keywords = {name: _by_mode(value, rule.mode(name)) for name, value in keywords.items()}
        _refuse_torn([*zip(positions, sent, strict=True), *sent_keywords.items()])
        return sent, sent_keywords, self._changed(arguments, keywords, positions)

    def about_argument(self, error: CrossingError) -> CrossingError:
        """Returns the error with the argument's position and name in place of the first part of its path.

        An argument that is passed by keyword has only a name. Returns an error that is not about an argument unchanged.
        """
        found = _PLACE.match(error.path)
        if found is None:
            return error
        names = self._names()
        group, key = found.groups()
        # The message begins with the function if it is sent by value.
        if int(group) < (self.name is None and "m" not in self.header):
            return error
        position = int(key) if key.isdigit() else -1
        name = f"{key} ({names[position]})" if 0 <= position < len(names) else key.strip("'\"")
        rest = error.path[found.end() :]
        return CrossingError(error.what, f"argument {name}{': ' if rest else ''}{rest}")

    def _changed(
        self, arguments: tuple[Any, ...], keywords: Mapping[str, Any], positions: list[str]
    ) -> list[Key] | None:
        mutates = self._rule.mutates
        if mutates == "none":
            return None
        if mutates == "auto":
            found: list[Key] = [index for index, value in enumerate(arguments) if mutation.may_change(value)]
            return found + [name for name, value in keywords.items() if mutation.may_change(value)]
        return [index for index, name in enumerate(positions) if name in mutates] + [
            name for name in keywords if name in mutates
        ]

    def _names(self) -> list[str]:
        if self._parameters is None:
            try:
                parameters = inspect.signature(self.function).parameters.values()
            except (TypeError, ValueError):
                parameters = ()  # type: ignore[assignment] # a C function without a signature
            kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            self._parameters = [each.name for each in parameters if each.kind in kinds]
        return self._parameters


def _by_mode(value: Any, mode: str) -> Any:
    match mode:
        case "value":
            return value
        case "ref":
            # Only functions are called back here. A callable object, such as a model, is moved to the acceptor.
            return Exported(value) if isinstance(value, _FUNCTIONS) else Resident(value)
    return outgoing(value)


def _refuse_torn(sent: list[tuple[str, Any]]) -> None:
    """Refuses arguments that share tensors if only some are sent by `ref`: the others would get copies of the tensors.

    For example, a model in the acceptor and a copy of its optimizer would have separate parameters. Raises
    CrossingError.
    """
    owners = {id(held): name for name, value in sent if isinstance(value, Resident) for held in _tensors(value.value)}
    if not owners:
        return
    for name, value in sent:
        torn = next((owners[id(held)] for held in _tensors(value) if id(held) in owners), None)
        if torn is not None:
            raise CrossingError(
                f"{name or 'an argument'}, a {type(value).__qualname__}, has tensors of {torn}, which goes by `ref`, "
                "and would come with copies of them: let both go by `ref`, or neither, and name both in `mutates`"
            )


def _tensors(value: Any) -> list[Any]:
    if inplace.library(value) != "torch":
        return []
    if isinstance(groups := getattr(value, "param_groups", None), list):
        return [held for group in groups for held in group["params"]]
    return [*value.parameters(), *value.buffers()] if hasattr(value, "named_buffers") else []


def outgoing(value: Any) -> Any:
    """Exports a callable of the program, also within a list, tuple or dict: a call in the acceptor then runs here."""
    if value.__class__ in (list, tuple):
        if len(value) <= _LOOKED_INTO and any(_stays_in_client(each) for each in value):
            return type(value)([Exported(each) if _stays_in_client(each) else each for each in value])
    elif value.__class__ is dict:
        if len(value) <= _LOOKED_INTO and any(_stays_in_client(each) for each in value.values()):
            return {key: Exported(each) if _stays_in_client(each) else each for key, each in value.items()}
    elif _stays_in_client(value):
        return Exported(value)
    return value


def _stays_in_client(value: Any) -> bool:
    """Returns whether a callable must run here: a function without an importable name, or a method of a local object.

    The acceptor finds a function of a module by its name. The rule `args: {f: ref}` makes such a function run here too.
    """
    match value:
        case types.FunctionType():
            return value.__module__ == "__main__" or "<" in value.__qualname__
        case types.MethodType():
            return not isinstance(value.__self__, type | types.ModuleType)
        case types.BuiltinFunctionType():
            return value.__self__ is not None and not isinstance(value.__self__, type | types.ModuleType)
        case partial():
            return _stays_in_client(value.func)
    return False


def named(function: Callable[..., Any]) -> tuple[str, str] | None:
    """Returns the name by which the acceptor finds a function; None if `__main__` or another function defines it."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if isinstance(function, types.BuiltinFunctionType) and not isinstance(function.__self__, type | types.ModuleType):
        # The qualified name may be wrong: that of the object whose method it is, as for functions of pybind11.
        name = function.__name__
    if not module or not name or module == "__main__" or "<" in name:
        return None
    return module, name
