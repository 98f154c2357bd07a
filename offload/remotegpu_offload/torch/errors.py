"""Errors of operations, which happen after the program has gone on: they say which operation it was, and when."""

import builtins
from typing import Any, Final

import torch

from remotegpu_offload.wire.frames import Message

_OF_TORCH: Final = {
    "OutOfMemoryError": torch.OutOfMemoryError,
    "LinAlgError": torch.linalg.LinAlgError,
}
_OF_PYTHON: Final = frozenset(
    (
        "RuntimeError",
        "IndexError",
        "ValueError",
        "TypeError",
        "NotImplementedError",
        "ZeroDivisionError",
        "OverflowError",
        "MemoryError",
        "AssertionError",
    )
)


# What torch says of the memory of a host, which is the device where the acceptor's is a CPU; as it says of itself.
_FULL: Final = "DefaultCPUAllocator: "


def checked(reply: Message) -> Message:
    """The reply, or the error of an operation that it carries.

    Raises the operation's own type of error where it is one of torch's or Python's usual ones, else RuntimeError.
    """
    fault = reply.header.get("fault")
    if fault is None:
        return reply
    raise rebuilt(fault)


def rebuilt(fault: dict[str, Any]) -> Exception:
    """The error that an acceptor described. Only types that are listed here are ever made."""
    name = str(fault.get("type"))
    text = str(fault.get("text"))
    kind: type[Exception] = _OF_TORCH.get(name) or (getattr(builtins, name) if name in _OF_PYTHON else RuntimeError)
    if kind is RuntimeError and _FULL in text:
        kind = torch.OutOfMemoryError
    elif kind is RuntimeError and name != "RuntimeError":
        text = f"{name}: {text}"
    return kind(text)
