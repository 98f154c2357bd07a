"""The remote device's two names: torch's, and the one by which the script names it and is answered."""

from typing import Any, Final

import torch

NAME: Final = "remote"
"""The name of the device within torch: torch keeps the names of its own devices for itself."""

device_type: Any = torch.device
"""torch's own class, for tests by identity that no wrapper can change."""


class Shown:
    """The script's names, and the one that it used first: tensors answer with that one."""

    names: tuple[str, ...] = ()
    name: str = "cuda"
    shown: Any = None


state = Shown()


def names() -> tuple[str, ...]:
    """The names that mean the remote device; empty in a program that has none of them."""
    return state.names


def current() -> str:
    """The name in which tensors tell their device: the first that the script used, `cuda` until then."""
    return state.name


def to_script(device: Any) -> Any:
    """A device in the script's name, where it has one."""
    remote = state.names and isinstance(device, device_type) and device.type == NAME
    return state.shown if remote else device
