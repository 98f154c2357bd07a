"""numba-cuda's own arrays, ufuncs and memory kinds, with nvJitLink installed as its extras bring it."""

from __future__ import annotations

import importlib.metadata
import math
import warnings

import cases
import numpy as np
from numba import cuda, float64, int64, vectorize
from numba.cuda import cg

warnings.filterwarnings("ignore")
rng = np.random.default_rng(7)


def kernels_are_linked_by_the_driver():
    """nvJitLink is installed, and what numba would make with it is machine code."""
    assert importlib.metadata.version("nvidia-nvjitlink")

    @cuda.jit
    def scale(a, factor):
        i = cuda.grid(1)
        if i < a.size:
            a[i] *= factor

    a = cuda.to_device(np.arange(1000.0))
    scale.forall(1000)(a, 3.0)
    assert np.array_equal(a.copy_to_host(), np.arange(1000.0) * 3)
    return [a.copy_to_host()]


def arrays_move_on_streams():
    stream = cuda.stream()
    host = rng.random((40, 30))
    with cuda.pinned(host):
        device = cuda.to_device(host, stream=stream)
        back = np.empty_like(host)
        device.copy_to_host(back, stream=stream)
        stream.synchronize()
    assert np.array_equal(back, host)
    assert np.array_equal(device[3:7].copy_to_host(), host[3:7])
    column = device[:, 2]
    assert np.array_equal(column.copy_to_host(), host[:, 2])
    device[1] = np.zeros(30)
    host[1] = 0
    assert np.array_equal(device.copy_to_host(), host)
    ordered = cuda.to_device(np.asfortranarray(host))
    assert np.array_equal(ordered.copy_to_host(), host)
    record = np.zeros(4, np.dtype([("x", np.int32), ("y", np.float64)], align=True))

    @cuda.jit
    def fill(records):
        i = cuda.grid(1)
        if i < records.size:
            records[i].x = i
            records[i].y = i * 0.5

    fill[1, 32](record)
    assert record["x"].tolist() == [0, 1, 2, 3] and record["y"].tolist() == [0, 0.5, 1, 1.5]
    return [device.copy_to_host(), record["y"]]


def written_by_kernel_and_host(a):
    @cuda.jit
    def increment(a):
        i = cuda.grid(1)
        if i < a.size:
            a[i] += 1

    for round_ in range(3):
        a[:] = np.arange(1000) * round_
        increment.forall(1000)(a)
        cuda.synchronize()
        assert np.array_equal(a, np.arange(1000) * round_ + 1)
    return [np.asarray(a)]


def kernels_write_mapped_memory():
    return written_by_kernel_and_host(cuda.mapped_array(1000))


def managed_arrays():
    return written_by_kernel_and_host(cuda.managed_array(1000))


def universal_functions():
    @vectorize([float64(float64, float64)], target="cuda")
    def hypotenuse(x, y):
        return math.sqrt(x * x + y * y)

    a, b = rng.random((2, 3000))
    got = hypotenuse(a, b)
    np.testing.assert_allclose(got, np.hypot(a, b), rtol=1e-14)
    assert np.array_equal(hypotenuse(cuda.to_device(a), cuda.to_device(b)).copy_to_host(), got)

    from numba import guvectorize

    @guvectorize([(int64[:], int64[:], int64[:])], "(n),()->(n)", target="cuda")
    def add_scalar(x, y, out):
        for i in range(x.shape[0]):
            out[i] = x[i] + y[0]

    x, y = rng.integers(0, 99, (20, 8)), rng.integers(0, 99, 20)
    total = add_scalar(x, y)
    assert np.array_equal(total, x + y[:, None])
    return [got, total]


def functions_call_functions():
    @cuda.jit(device=True)
    def horner(x, a, b, c):
        return (a * x + b) * x + c

    @cuda.jit(device=True)
    def solve(x):
        for _ in range(30):
            x = x - horner(x, 1.0, 0.0, -2.0) / horner(x, 0.0, 2.0, 0.0)
        return x

    @cuda.jit
    def roots(starts, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = solve(starts[i])

    starts = rng.random(200) + 0.5
    out = np.zeros(200)
    roots[2, 128](starts, out)
    np.testing.assert_allclose(out, math.sqrt(2), rtol=1e-15)
    return [out]


def atomic_operations():
    @cuda.jit
    def all_of_them(data, ints, floats):
        i = cuda.grid(1)
        if i < data.size:
            v = data[i]
            cuda.atomic.add(ints, 0, v)
            cuda.atomic.sub(ints, 1, v)
            cuda.atomic.max(ints, 2, v)
            cuda.atomic.min(ints, 3, v)
            cuda.atomic.and_(ints, 4, v)
            cuda.atomic.or_(ints, 5, v)
            cuda.atomic.xor(ints, 6, v)
            cuda.atomic.exch(ints, 7, 5)
            cuda.atomic.cas(ints, 8, 0, 9)
            cuda.atomic.add(floats, 0, 0.25)

    data = rng.integers(1, 1000, 3000)
    ints, floats = np.zeros(9, np.int64), np.zeros(1)
    ints[3], ints[4] = 5000, -1
    all_of_them[24, 128](data, ints, floats)
    want = [
        data.sum(), -data.sum(), data.max(), data.min(), np.bitwise_and.reduce(data), np.bitwise_or.reduce(data),
        np.bitwise_xor.reduce(data), 5, 9,
    ]  # fmt: skip
    assert ints.tolist() == want and floats[0] == 750
    return [ints, floats]


def grids_synchronise():
    @cuda.jit
    def shift(a, rounds):
        grid = cg.this_grid()
        i = cuda.grid(1)
        for _ in range(rounds):
            value = a[(i + 1) % a.size]
            grid.sync()
            a[i] = value
            grid.sync()

    a = np.arange(256)
    shift[4, 64](a, 5)
    assert np.array_equal(a, (np.arange(256) + 5) % 256)
    return [a]


if __name__ == "__main__":
    cases.main(globals())
