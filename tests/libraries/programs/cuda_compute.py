"""cuda.compute, the algorithms of CUB for arrays, which links at run time by nvJitLink, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import cuda.compute
import cupy as cp
import numpy as np
from cases import Value
from cuda.compute import OpKind

rng = np.random.default_rng(52)


def reduction() -> Iterator[Value]:
    values = rng.integers(-1000, 1000, 10000).astype(np.int64)
    total, start = cp.empty(1, np.int64), np.zeros(1, np.int64)
    cuda.compute.reduce_into(d_in=cp.asarray(values), d_out=total, num_items=len(values), op=OpKind.PLUS, h_init=start)
    yield Value(total.get()[0], values.sum())


def scan() -> Iterator[Value]:
    values = rng.integers(0, 100, 5000).astype(np.int32)
    result = cp.empty(5000, np.int32)
    cuda.compute.inclusive_scan(
        d_in=cp.asarray(values), d_out=result, op=OpKind.PLUS, init_value=np.zeros(1, np.int32), num_items=5000
    )
    yield Value(result.get(), np.cumsum(values))


def sort() -> Iterator[Value]:
    keys = rng.permutation(4000).astype(np.int32)
    result = cp.empty(4000, np.int32)
    cuda.compute.radix_sort(
        d_in_keys=cp.asarray(keys), d_out_keys=result, num_items=4000, order=cuda.compute.SortOrder.ASCENDING
    )
    yield Value(result.get(), np.sort(keys))


if __name__ == "__main__":
    cases.main(globals())
