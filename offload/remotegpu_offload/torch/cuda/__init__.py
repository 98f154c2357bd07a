"""Replacements for functions of torch.cuda, torch.xpu, torch.mps and torch.accelerator, for the remote device.

There are three kinds of public names in these modules. Some answer, with figures from the acceptor. Some are harmless,
because the remote stream executes operations in order. The others raise an error with a sentence. No name reaches a
local driver.
"""

from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import torch

from remotegpu_offload.torch import random
from remotegpu_offload.torch.cuda import backends, figures, legacy, refused, streams


def install(names: Iterable[str]) -> None:
    """Replaces functions in the modules of these names and in torch.accelerator, for the lifetime of the process."""
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
    """Installs the answers, and lets every other public function and class raise an error with a sentence."""
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
    """Returns a copy of the function for one place: torch.compile has one rule for each function, under one name."""
    made = FunctionType(function.__code__, function.__globals__, name, function.__defaults__, function.__closure__)
    made.__kwdefaults__, made.__doc__ = function.__kwdefaults__, function.__doc__
    made.__dict__.update(function.__dict__)
    made.__module__ = module.__name__
    return made
