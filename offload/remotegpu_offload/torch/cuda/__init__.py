"""A facade of torch.cuda, torch.xpu, torch.mps and torch.accelerator over the remote device.

Everything public in these modules is either answered (by the acceptor where it is a figure), harmless because the
stream of operations is one sequence, or refused with a sentence: never a driver's error.
"""

from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import torch

from remotegpu_offload.torch import random
from remotegpu_offload.torch.cuda import backends, figures, legacy, refused, streams


def install(names: Iterable[str]) -> None:
    """Put the facade over the modules of these names and over torch.accelerator, for good."""
    for name in names:
        module = getattr(torch, name)
        answers = {**figures.ANSWERS, **streams.ANSWERS, **random.answers(name)}
        if name == "mps":
            answers |= {**figures.MPS, "manual_seed": random.manual_seed}
        _cover(module, answers)
    for part, answers in (
        ("memory", figures.ANSWERS),
        ("random", random.answers("cuda")),
        ("streams", streams.ANSWERS),
    ):
        whole = getattr(torch.cuda, part)
        whole.__dict__.update({name: getattr(torch.cuda, name) for name in answers.keys() & vars(whole).keys()})
    _put(torch.accelerator, {**figures.ACCELERATOR, **streams.ACCELERATOR})
    memory = {name: getattr(torch.accelerator, name) for name in figures.ACCELERATOR_MEMORY}
    torch.accelerator.memory.__dict__.update(memory)
    for part in (torch.accelerator._utils, torch.accelerator.memory, torch.accelerator.random):
        part._get_device_index = torch.accelerator._get_device_index
    legacy.install(names)
    backends.install()
    torch.Event, torch.Stream = streams.Event, streams.Stream


def _cover(module: ModuleType, answers: dict[str, Any]) -> None:
    """Answer what we can, and let every other public function and class say why not."""
    before = {name for name in [*getattr(module, "__all__", ()), *vars(module)] if not name.startswith("_")}
    _put(module, answers)
    for name in before - answers.keys() - refused.HARMLESS:
        value = getattr(module, name, None)
        if callable(value) and str(getattr(value, "__module__", "")).startswith("torch"):
            setattr(module, name, refused.refusal(f"{module.__name__}.{name}", value))


def _put(module: Any, answers: dict[str, Any]) -> None:
    for name, value in answers.items():
        if name.startswith("_") or hasattr(module, name):
            setattr(module, name, _own(value, module, name) if isinstance(value, FunctionType) else value)


def _own(function: FunctionType, module: Any, name: str) -> FunctionType:
    """A function object for this place alone: torch.compile has a rule for each, and wants none under two names."""
    made = FunctionType(function.__code__, function.__globals__, name, function.__defaults__, function.__closure__)
    made.__kwdefaults__, made.__doc__ = function.__kwdefaults__, function.__doc__
    made.__dict__.update(function.__dict__)
    made.__module__ = module.__name__
    return made
