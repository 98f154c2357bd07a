"""A training loop as a user writes it: `train_epoch` is what rules send elsewhere."""

import os
from typing import Any

import torch
from torch import nn


class Net(nn.Module):
    """A network with a parameter used twice, buffers, and a module that has state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.memory = nn.LSTM(8, 8)
        self.last = nn.Linear(8, 4)
        self.last.weight = nn.Parameter(self.first.weight.detach().t().contiguous())
        self.tied = self.first.weight
        self.seen = 0

    def forward(self, x: Any) -> Any:
        self.seen += len(x)
        return self.last(self.memory(self.norm(self.first(x)))[0]) @ self.tied.t()


def make(kind: str = "Adam") -> tuple[Any, Any, Any]:
    """A model, its optimizer, and a batch."""
    torch.manual_seed(0)
    model = Net()
    options = {"SGD": {"momentum": 0.9}, "Adam": {}}[kind]
    return model, getattr(torch.optim, kind)(model.parameters(), lr=0.05, **options), torch.randn(16, 4)


def train_epoch(model: Any, opt: Any, batch: Any) -> float:
    model.train()
    opt.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    opt.step()
    return float(loss.detach())


def train_both(model: Any, opt: Any, schedule: Any, batch: Any) -> float:
    """Trains like `train_epoch`, with a schedule of the rate; freezes a part."""
    loss = train_epoch(model, opt, batch)
    schedule.step()
    model.first.bias.requires_grad_(False)
    return loss


def add_head(opt: Any, head: Any) -> None:
    opt.add_param_group({"params": list(head.parameters()), "lr": 0.5})


def ten(t: Any) -> None:
    t.zero_()


def grow(t: Any) -> None:
    t.data = torch.ones(3, 3)


def convert(t: Any) -> None:
    t.data = t.data.double()


def change(things: Any) -> None:
    things["w"].add_(1)
    things["n"] += 1
    things["view"].mul_(2)


def backward(model: Any, batch: Any) -> float:
    """Computes only the gradients; the step is made elsewhere."""
    loss = model(batch).square().mean()
    loss.backward()
    return float(loss.detach())


def step(opt: Any) -> None:
    opt.step()
    opt.zero_grad()


def look(what: Any) -> str:
    return type(what).__qualname__


def where() -> int:
    return os.getpid()
