"""torch's own table of operations (op_db) on the remote device against the CPU: `python -m offload_opdb
forward float32`.

One line of JSON for each operation: its name and variant, how many samples were compared, and what was unequal. It is
a program of its own because an operation may crash; the last line then says which it was.
"""

import argparse
import itertools
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

SAMPLES = 3
# A sample with more elements takes gradcheck too long.
SMALL = 10_000

SWEEPS: Final = {"forward": "float32", "backward": "float64", "gradcheck": "float64"}
"""The modes in which all operations are measured, each with its type."""

UNWRITTEN: Final = "compares memory that nobody has written to"
_SPARSE: Final = "sparse tensors: the remote device has dense ones only"
UNEQUAL: Final = {
    "empty": UNWRITTEN,
    "empty_like": UNWRITTEN,
    "empty_permuted": UNWRITTEN,
    "empty_strided": UNWRITTEN,
    "new_empty": UNWRITTEN,
    "new_empty_strided": UNWRITTEN,
    "sparse.mm reduce": _SPARSE,
    "sparse.sampled_addmm": _SPARSE,
    "to_sparse": _SPARSE,
    "tensor_split": "the sections must be a tensor on the CPU, also with CUDA",
}
"""Operations that differ from the CPU's, and why."""


@dataclass
class Found:
    """The results of a run; `operations` counts those with at least one comparison."""

    compared: int = 0
    equal: int = 0
    operations: int = 0
    unequal: dict[str, list[str]] = field(default_factory=dict)
    crashed: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return self.equal / max(self.compared, 1)


def sweep(mode: str, dtype: str, *, every: int = 1, families: bool = False, timeout: float = 300) -> Found:
    """Runs all operations, or every n-th, or the first of each family, in processes of their own. After a crash the
    next process continues behind it."""
    found, start = Found(), 0
    while start is not None:
        start = _part(found, [mode, dtype, "--every", str(every), *(["--families"] * families)], start, timeout)
    return found


def _part(found: Found, options: list[str], start: int, timeout: float) -> Any:
    command = [sys.executable, "-m", "offload_opdb", *options, "--start", str(start)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, cwd=Path(__file__).parent
    )
    begun: dict[str, Any] | None = None
    for line in done.stdout.splitlines():
        told = json.loads(line)
        if "begin" in told:
            begun = told
            continue
        begun = None
        if "end" in told:
            return None
        found.operations += bool(told["compared"])
        found.compared += told["compared"]
        found.equal += told["compared"] - len(told["unequal"])
        if told["unequal"]:
            found.unequal[told["name"]] = told["unequal"]
    if begun is None:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    found.crashed.append(begun["begin"])
    return begun["index"] + 1


def main() -> None:
    """The program."""
    import torch
    from offload_local import local_session
    from torch.testing._internal.common_methods_invocations import op_db

    from remotegpu_offload.torch import device

    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["forward", "backward", "gradcheck"])
    parser.add_argument("dtype")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--families", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    dtype = getattr(torch, asked.dtype)
    with local_session() as session:
        device.activate(session)
        chosen = _families(op_db) if asked.families else range(0, len(op_db), asked.every)
        for index in (index for index in chosen if index >= asked.start):
            info = op_db[index]
            name = f"{info.name} {info.variant_test_name}".strip()
            if dtype not in info.supported_dtypes("cpu") or (asked.mode != "forward" and not info.supports_autograd):
                continue
            print(json.dumps({"begin": name, "index": index}), flush=True)
            compared, unequal = _compare(info, asked.mode, dtype)
            print(json.dumps({"name": name, "compared": compared, "unequal": unequal}), flush=True)
        print(json.dumps({"end": True}), flush=True)


def _families(table: list[Any]) -> list[int]:
    """Returns the first operation of each family: of one class of torch's table, and one module."""
    first: dict[tuple[str, str], int] = {}
    for index, info in enumerate(table):
        first.setdefault((type(info).__name__, info.name.rpartition(".")[0]), index)
    return sorted(first.values())


def _compare(info: Any, mode: str, dtype: Any) -> tuple[int, list[str]]:
    compared, unequal = 0, []
    for sample in _samples(info, mode, dtype):
        # What the CPU itself refuses says nothing.
        try:
            want = _run(info, mode, sample)
        except Exception:
            continue
        if mode == "gradcheck" and not want:
            continue
        compared += 1
        try:
            _check(mode, _run(info, mode, _there(sample)), want, dtype)
        except Exception as error:
            unequal.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return compared, unequal


def _samples(info: Any, mode: str, dtype: Any) -> Iterator[tuple[Any, Any]]:
    import torch

    torch.manual_seed(0)
    gradients = mode != "forward"
    for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=gradients), SAMPLES):
        whole = ([sample.input, *sample.args], dict(sample.kwargs))
        if mode != "gradcheck" or sum(tensor.numel() for tensor in _leaves(whole)) <= SMALL:
            yield whole


def _run(info: Any, mode: str, sample: tuple[Any, Any]) -> Any:
    """Returns the results, or the gradients of their sums, or whether gradcheck agrees."""
    import torch

    args, kwargs = _each(sample, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad))
    torch.manual_seed(0)
    if mode == "gradcheck":
        leaves = [tensor for tensor in _leaves((args, kwargs)) if tensor.requires_grad]

        def function(*values: Any) -> Any:
            given = iter(values)
            a, k = _each((args, kwargs), lambda tensor: next(given) if tensor.requires_grad else tensor)
            return tuple(value for value in _leaves(info.op(*a, **k)) if value.requires_grad)

        return torch.autograd.gradcheck(function, leaves, fast_mode=True, nondet_tol=1e-9, atol=1e-4)
    out = info.op(*args, **kwargs)
    if mode == "forward":
        return _each(out, lambda tensor: tensor.detach().cpu())
    leaves = [tensor for tensor in _leaves((args, kwargs)) if tensor.requires_grad]
    results = [value for value in _leaves(out) if value.requires_grad]
    total = sum((value.abs() if value.is_complex() else value).sum() for value in results)
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return [None if grad is None else grad.detach().cpu() for grad in grads]


def _check(mode: str, got: Any, want: Any, dtype: Any) -> None:
    import torch

    tolerance = {torch.float32: 1e-5, torch.complex64: 1e-5, torch.float64: 1e-8, torch.complex128: 1e-8}.get(dtype)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=tolerance, atol=tolerance, msg=None)
    if mode == "gradcheck" and got is not True:
        raise AssertionError("gradcheck differs")


def _there(sample: tuple[Any, Any]) -> Any:
    import torch

    from remotegpu_offload.torch.shown import NAME

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().to(NAME).requires_grad_(value.requires_grad)
        return torch.device(NAME) if value in ("cpu", torch.device("cpu")) else value

    return _each(sample, move, every=True)


def _each(value: Any, change: Any, *, every: bool = False) -> Any:
    import torch
    from torch.utils import _pytree

    def leaf(item: Any) -> Any:
        return (
            change(item)
            if (every and isinstance(item, (str, torch.device))) or isinstance(item, torch.Tensor)
            else item
        )

    return _pytree.tree_map(leaf, value)


def _leaves(value: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


if __name__ == "__main__":
    main()
