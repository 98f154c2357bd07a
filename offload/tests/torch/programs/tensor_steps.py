"""Functions on tensors, as a user writes them; the test has them run in the acceptor."""

import os
from typing import Any

import torch


def where() -> int:
    return os.getpid()


def double(x: Any) -> Any:
    return x * 2


def add_one(x: Any) -> None:
    x.add_(1)


def transposed(x: Any) -> Any:
    """A view of what was given."""
    return x.t()


def train(model: Any, x: Any, rate: float) -> float:
    loss = model(x).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad, alpha=rate)
    return float(loss.detach())


def forward(model: Any, x: Any) -> Any:
    return model(x)


def describe(x: Any) -> dict[str, Any]:
    return {
        "dtype": x.dtype,
        "size": x.size(),
        "device": x.device,
        "wants": x.requires_grad,
        "format": torch.preserve_format,
    }


def same(pair: list[Any]) -> bool:
    return pair[0] is pair[1]


def mixed(value: Any) -> Any:
    return {"sum": value["x"].sum().item(), "tuple": (value["host"] + 1, value["x"][0])}
