"""torch's own table of operators, on its own samples: each on the GPU and on torch's CPU back end.

operators.py TYPE SAMPLES [FIRST LAST]: a line of JSON for each entry of the table, of those from FIRST to LAST.

Where the two are apart, double on the CPU decides: the GPU may be as far from it as the CPU is, and a little further.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

warnings.filterwarnings("ignore")

# Of the greatest value.
WITHIN = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-9, torch.complex64: 1e-5}
WIDER = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64}
WIDER |= {torch.complex64: torch.complex128}


def seeded(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def moved(value: object, device: str, dtype: torch.dtype | None = None) -> object:
    """A copy on the device, tensors that share their storage apart."""

    def copy(each: object) -> object:
        if not isinstance(each, Tensor):
            return torch.device(device) if isinstance(each, torch.device) else each
        made = each.detach().clone().to(device)
        return made.to(dtype) if dtype is not None and made.dtype in WIDER else made

    return tree_map(copy, value)


def tensors(result: object) -> list[Tensor]:
    found = []
    for each in tree_flatten(result)[0]:
        if isinstance(each, Tensor):
            plain = each.detach()
            plain = plain.to_dense() if plain.layout != torch.strided else plain
            found.append(plain.resolve_conj().resolve_neg().cpu())
        elif isinstance(each, bool | int | float | complex):
            found.append(torch.tensor(each))
    return found


def distance(got: Tensor, want: Tensor) -> float:
    """In units of the greatest value; equal infinities and NaNs are near each other."""
    wide = torch.complex128 if got.is_complex() or want.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    if got.numel() == 0:
        return 0.0
    if wide == torch.complex128:
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    same = (got == want) | (got.isnan() & want.isnan())
    apart = torch.where(same, 0.0, (got - want).abs())
    scale = want[want.isfinite()].abs().max() if want.isfinite().any() else torch.tensor(0.0)
    worst = float(apart.nan_to_num(nan=float("inf")).max())
    return worst / max(1.0, float(scale))


def compared(got: list[Tensor], want: list[Tensor], exact: list[Tensor] | None, within: float) -> str:
    """Says what is wrong, or nothing."""
    if [each.shape for each in got] != [each.shape for each in want]:
        return f"shapes {[tuple(each.shape) for each in got]}, on the CPU {[tuple(each.shape) for each in want]}"
    if [each.dtype for each in got] != [each.dtype for each in want]:
        return f"types {[each.dtype for each in got]}, on the CPU {[each.dtype for each in want]}"
    for index, (one, other) in enumerate(zip(got, want, strict=True)):
        apart = distance(one, other)
        if apart <= (within if one.is_floating_point() or one.is_complex() else 0.0):
            continue
        if exact is not None and len(exact) == len(got) and exact[index].shape == one.shape:
            mine, theirs = distance(one, exact[index]), distance(other, exact[index])
            if mine <= max(within, 2 * theirs):
                continue
            return f"result {index} is {mine:.2g} from double, the CPU's {theirs:.2g}"
        return f"result {index} is {apart:.2g} from the CPU's"
    return ""


def samples(op: object, dtype: torch.dtype, count: int) -> Iterator[object]:
    seeded(1)
    for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
        if number == count:
            return
        yield sample


def wider(op: object, sample: object, dtype: torch.dtype) -> list[Tensor] | None:
    if dtype not in WIDER:
        return None
    given, arguments, options = moved((sample.input, sample.args, sample.kwargs), "cpu", WIDER[dtype])
    seeded(2)
    try:
        return tensors(op.op(given, *arguments, **options))
    except Exception:
        return None


def entry(op: object, dtype: torch.dtype, count: int) -> dict[str, object]:
    digest, wrong, seen = hashlib.sha256(), [], 0
    for number, sample in enumerate(samples(op, dtype, count)):
        given, arguments, options = moved((sample.input, sample.args, sample.kwargs), "cuda")
        # What a sample changes in place is compared as well.
        mine, theirs = moved((sample.input, sample.args, sample.kwargs), "cpu"), None
        exact = wider(op, sample, dtype)
        seeded(2)
        try:
            theirs = tensors(op.op(mine[0], *mine[1], **mine[2]))
        except Exception as problem:
            refused = str(problem)
        seeded(2)
        try:
            got = tensors(op.op(given, *arguments, **options))
        except Exception as problem:
            if theirs is not None:
                wrong.append(f"sample {number}: {type(problem).__name__}: {' '.join(str(problem).split())[:200]}")
            continue
        seen += 1
        for each in got:
            digest.update(f"{each.dtype}{tuple(each.shape)}".encode())
            digest.update(each.contiguous().flatten().view(torch.uint8).numpy().tobytes() if each.numel() else b"")
        if theirs is None:
            wrong.append(f"sample {number}: the CPU refuses: {refused[:100]}")
        elif problem := compared(got, theirs, exact, WITHIN.get(dtype, 0.0)):
            wrong.append(f"sample {number}: {problem}")
    return {"samples": seen, "wrong": wrong, "sha256": digest.hexdigest()}


def main() -> None:
    # torch's test helpers have frozen the setting itself.
    with torch.backends.cudnn.flags(enabled=False):
        run()


def run() -> None:
    dtype, count = getattr(torch, sys.argv[1]), int(sys.argv[2])
    chosen = sorted(op_db, key=lambda op: op.formatted_name)
    if len(sys.argv) > 3:
        chosen = [op for op in chosen if op.formatted_name in sys.argv[3:]]
    for op in chosen:
        if dtype not in op.supported_dtypes("cuda") or dtype not in op.supported_dtypes("cpu"):
            continue
        start = time.monotonic()
        found = entry(op, dtype, count)
        torch.cuda.synchronize()
        seconds = round(time.monotonic() - start, 2)
        print(json.dumps({"operator": op.formatted_name, "seconds": seconds} | found), flush=True)


if __name__ == "__main__":
    main()
    # Some of torch's operators leave threads that end slowly.
    sys.stdout.flush()
    os._exit(0)
