"""Translates names of the remote device: the script's name (`cuda`) to torch's (`remote:0`), and back."""

from collections.abc import Iterable
from typing import Any, Final

import torch

from remotegpu_offload.torch.shown import NAME, device_type, state
from remotegpu_offload.torch.stream import link

NAMES: Final = ("cuda", "xpu", "mps")
"""What a rule `torch: {devices: [...]}` may name."""


class _Ways:
    """The remote device for each name that a script may use, and whether the session is open."""

    ready = False
    to_remote: dict[Any, Any]

    def __init__(self) -> None:
        self.to_remote = {}

    def begin(self, name: str) -> None:
        """Opens the session, because the script has named the device for the first time."""
        state.name = name
        state.shown = torch.device(name, 0)
        link.remote()
        self.ready = True


_ways = _Ways()
_original_device = torch._C.TensorBase.device


def is_remote(tensor: Any) -> bool:
    """Returns whether a tensor is in an acceptor."""
    return bool(_original_device.__get__(tensor).type == NAME)


def to_remote(device: Any) -> Any:
    """Returns the remote device for a script's name of it; any other value unchanged.

    Opens the session at the first name. Raises RuntimeError for an index other than 0, because a session has one
    device.
    """
    found = _ways.to_remote.get(device) if isinstance(device, (str, device_type)) else None
    if found is None:
        return _to_remote_rare(device)
    if not _ways.ready:
        _ways.begin(str(device).partition(":")[0])
    return found


def _to_remote_rare(device: Any) -> Any:
    if isinstance(device, int) and not isinstance(device, bool):
        device = f"{state.name}:{device}"
    if isinstance(device, (str, device_type)):
        name, _, index = str(device).partition(":")
        if name in state.names:
            if index == "0":
                return to_remote(device)
            raise RuntimeError(
                f"{device}: invalid device ordinal. This session has one remote device, {name}:0. Use {name}:0, or one "
                "process for each device"
            )
    return device


def install(names_: Iterable[str]) -> None:
    """Makes these names refer to the remote device. Call it once."""
    state.names = tuple(names_)
    state.name = state.names[0]
    state.shown = torch.device(state.name, 0)
    true = torch.device(NAME, 0)
    for name in state.names:
        for said in (name, f"{name}:0", torch.device(name), torch.device(name, 0)):
            _ways.to_remote[said] = true
