"""Adds the name of the interrupted call to the error of a lost acceptor. Pure."""

from collections.abc import Callable
from typing import Any, Final

from remotegpu_offload.objects.encoder import Exported, Resident
from remotegpu_offload.wire.errors import LostError

_CELL: Final = ["remotegpu_offload.jupyter.cell", "run"]


class naming:  # noqa: N801 - used like functions of contextlib
    """Adds the interrupted request to a LostError that leaves the block, unless the error names one already.

    This is a class, because a generator-based context manager would change a StopIteration that passes through.
    """

    __slots__ = ("_what",)

    def __init__(self, what: Callable[[], str]) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, LostError) and (named := error.during(self._what())) is not error:
            raise named from None


def called(header: dict[str, Any], payload: Any) -> str:  # noqa: PLR0911 - one return for each kind of call
    """Describes for users the call that a request of `Service.CALL` makes; "" if only the caller knows."""
    match header:
        case {"o": _}:
            return ""
        case {"op": "copy"}:
            return f"in the copy of a {name_of(type(payload[0]))}"
        case {"m": method}:
            return f"in the call of {_class_of(payload[0][0])}.{method}"
        case {
            "t": ["builtins", "setattr" | "delattr"] | ["remotegpu_offload.functions.acceptor", "attribute" | "changed"]
        } if len(payload[0]) > 1:
            return f"in the use of {_class_of(payload[0][0])}.{payload[0][1]}"
        case {"t": target} if target == _CELL:
            return "in a cell of the notebook"
        case {"t": [module, _]} if module.startswith("remotegpu_offload.") and payload[0]:
            return f"in the use of a {_class_of(payload[0][0])}"
        case {"t": [module, name]}:
            return f"in the call of {module}.{name}"
    return "" if payload[0] is None else f"in the call of {name_of(payload[0])}"


def name_of(function: Any) -> str:
    """Returns the qualified name of a function or class."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module and module != "builtins" else str(name)


def _class_of(value: Any) -> str:
    if isinstance(value, Exported | Resident):
        value = value.value
    return name_of(value if isinstance(value, type) else type(value))
