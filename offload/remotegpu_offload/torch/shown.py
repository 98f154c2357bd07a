"""The remote device's two names: torch's name, and the name that the script uses and reads."""

from typing import Any, Final

import torch

NAME: Final = "remote"
"""The name of the device within torch: torch keeps the names of its own devices for itself."""

device_type: Any = torch.device
"""torch's own class, for tests by identity that no wrapper can change."""


class Shown:
    """The script's names of the device, and the one that it used first, which tensors show."""

    names: tuple[str, ...] = ()
    name: str = "cuda"
    shown: Any = None


state = Shown()


def names() -> tuple[str, ...]:
    """Returns the names that refer to the remote device; empty if the program has none."""
    return state.names


def current() -> str:
    """Returns the name that tensors show as their device: the first one that the script used, `cuda` before that."""
    return state.name


def to_script(device: Any) -> Any:
    """Returns the device with the script's name if it is the remote one; otherwise unchanged."""
    remote = state.names and isinstance(device, device_type) and device.type == NAME
    return state.shown if remote else device
