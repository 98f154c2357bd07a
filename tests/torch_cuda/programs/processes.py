"""Processes of torch with CUDA: workers of a DataLoader, and children that get a tensor of the parent's by IPC."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import numpy as np
import torch
import torch.multiprocessing
from cases import Value
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

METHODS = ("spawn", "forkserver")


class Squares(Dataset[Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((5,), float(index)) ** 2


def loaded(method: str) -> Iterator[Value]:
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=method, pin_memory=True)
    got = torch.cat([(batch.to("cuda", non_blocking=True) + 1).cpu() for batch in loader])
    yield Value(got.numpy(), np.repeat(np.arange(12.0)[:, None] ** 2 + 1, 5, 1).astype(np.float32))


def loader_fork() -> Iterator[Value]:
    yield from loaded("fork")


def loader_spawn() -> Iterator[Value]:
    yield from loaded("spawn")


def double_it(shared: Tensor, number: int, results: torch.multiprocessing.SimpleQueue) -> None:
    """Changes the parent's tensor in place, and sends back what it has computed on the GPU."""
    shared[number] *= 2
    torch.cuda.synchronize()
    results.put((number, float((shared[number] + 0.5).sum())))


def children() -> Iterator[Value]:
    for method in METHODS:
        context = torch.multiprocessing.get_context(method)
        shared = torch.arange(6.0, device="cuda").reshape(2, 3)
        results = context.SimpleQueue()
        started = [context.Process(target=double_it, args=(shared, number, results)) for number in range(2)]
        for each in started:
            each.start()
        got = dict(sorted(results.get() for _ in started))
        for each in started:
            each.join()
        yield Value(np.array([each.exitcode for each in started]), np.array([0, 0]))
        yield Value(np.array([got[0], got[1]]), np.array([7.5, 25.5]))
        yield Value(shared.cpu().numpy(), np.arange(6, dtype=np.float32).reshape(2, 3) * 2)


if __name__ == "__main__":
    cases.main(globals())
