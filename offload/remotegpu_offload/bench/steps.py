"""Measures training steps on a device, in torch mode or on this machine's CPU: their time, and the bytes that cross.

    python steps.py DEVICE [--tiny N] [--heavy N] [--since SECONDS]

`tiny` is the worst case: a step of the digits network, which computes for only a few milliseconds. `heavy` is a step of
six layers of 1024. Times are medians in ms. Processor time is the sum over all threads of this process.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_WARM = 5
_ADDITIONS = 2000


def tiny(device: str) -> Callable[[], float]:
    """Returns a step of the digits network: batch normalisation, AdamW and clipping on 36 pictures of 8 x 8."""
    layers: list[nn.Module] = []
    for wide, narrow in ((16, 1), (32, 16)):
        layers += [nn.Conv2d(narrow, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
    model = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pictures, labels = torch.randn(36, 1, 8, 8), torch.randint(10, (36,))

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures.to(device)), labels.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.item())

    return step


def heavy(device: str) -> Callable[[], float]:
    """Returns a step of six linear layers of 1024 with SGD and a batch of 256."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = torch.randn(256, 1024)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(samples.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def counted() -> dict[str, int]:
    """Returns the totals of transferred data so far; all 0 without a session."""
    from remotegpu_offload.client import session  # noqa: PLC0415 (needs the packages that `offload run` provides)

    opened = session.opened()
    if opened is None:
        return dict.fromkeys(("round_trips", "bytes_out", "bytes_in", "operations"), 0)
    from remotegpu_offload.torch import device  # noqa: PLC0415

    counters = opened.counters()
    return {
        "round_trips": counters["round_trips"],
        "bytes_out": counters["bytes_out"],
        "bytes_in": counters["bytes_in"],
        "operations": device.current().stats()["operations"],
    }


def measured(step: Callable[[], float], count: int) -> dict[str, float]:
    """Runs a step `count` times. Returns the median time, and the means of the other figures."""
    for _ in range(_WARM):
        step()
    before, busy = counted(), time.process_time()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    busy = time.process_time() - busy
    return {
        "step_ms": statistics.median(times) * 1e3,
        "client_cpu_ms": busy / count * 1e3,
        **{name: (value - before[name]) / count for name, value in counted().items()},
    }


def addition_cpu_us(device: str) -> float:
    """Returns the processor time of this process for one addition of two small tensors, in us."""
    left, right = torch.ones(4, device=device), torch.ones(4, device=device)
    for _ in range(100):
        left + right
    busy = time.process_time()
    for _ in range(_ADDITIONS):
        left + right
    busy = time.process_time() - busy
    (left + right).sum().item()
    return busy / _ADDITIONS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("device")
    parser.add_argument("--tiny", type=int, default=100)
    parser.add_argument("--heavy", type=int, default=10)
    parser.add_argument("--since", type=float)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found: dict[str, Any] = {"first_result_s": None}
    torch.ones(2, device=options.device).sum().item()
    if options.since is not None:
        found["first_result_s"] = time.time() - options.since
    found["tiny"] = measured(tiny(options.device), options.tiny)
    if options.heavy:
        found["heavy"] = measured(heavy(options.device), options.heavy)
    found["addition_cpu_us"] = addition_cpu_us(options.device)
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
