"""The remote torch device for tests: one for the whole process, with a real acceptor process on the CPU."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from offload_local import local_session

from remotegpu_offload.torch import device, shown


@pytest.fixture(scope="session")
def remote() -> Iterator[device.Remote]:
    """Yields the device; its acceptor is a process of this interpreter, started for it."""
    with local_session() as session:
        yield device.activate(session)


def to_remote(value: Any) -> Any:
    """Moves every tensor of a structure to the remote device; gradients and all are wanted as before."""
    return _map(value, lambda tensor: tensor.detach().to(shown.NAME).requires_grad_(tensor.requires_grad))


def to_cpu(value: Any) -> Any:
    """Moves every tensor of a structure to the CPU, without its history."""
    return _map(value, lambda tensor: tensor.detach().cpu())


def same(got: Any, want: Any, **how: Any) -> None:
    """Asserts that both are equal up to rounding, on whatever devices they are."""
    torch.testing.assert_close(to_cpu(got), to_cpu(want), equal_nan=True, **how)


def both(function: Any, *args: Any, **how: Any) -> Any:
    """Returns a function's result for arguments on the CPU, after a check that the remote device returns the same."""
    copies = _map(args, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad))
    want = function(*copies)
    same(function(*to_remote(args)), want, **how)
    return want


def _map(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        made = [_map(item, change) for item in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    return value


def by_line(function: Any) -> str:
    """Names a test for a lambda by its line."""
    return f"line{function.__code__.co_firstlineno}"
