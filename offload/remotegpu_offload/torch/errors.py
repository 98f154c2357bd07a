"""Errors of operations. They are raised after the call has returned, so they name the operation and its number."""

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


# The beginning of torch's message when host memory is full, which is device memory if the acceptor's device is a CPU.
_FULL: Final = "DefaultCPUAllocator: "


def checked(reply: Message) -> Message:
    """Returns the reply. Raises the error of an operation if the reply carries one.

    The type is the original one if torch or Python defines it as a usual error, otherwise RuntimeError.
    """
    fault = reply.header.get("fault")
    if fault is None:
        return reply
    raise rebuilt(fault)


def rebuilt(fault: dict[str, Any]) -> Exception:
    """Returns the exception for an error that an acceptor described. Makes only types that are listed here."""
    name = str(fault.get("type"))
    text = str(fault.get("text"))
    kind: type[Exception] = _OF_TORCH.get(name) or (getattr(builtins, name) if name in _OF_PYTHON else RuntimeError)
    if kind is RuntimeError and _FULL in text:
        kind = torch.OutOfMemoryError
    elif kind is RuntimeError and name != "RuntimeError":
        text = f"{name}: {text}"
    return kind(text)
