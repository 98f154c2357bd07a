"""Kernels of numba-cuda: shared memory, atomics, cooperative groups, ufuncs, streams."""

from __future__ import annotations

import math
from collections.abc import Iterator

import cases
import numpy as np
from cases import Value
from numba import cuda, float32, float64, vectorize

rng = np.random.default_rng(42)
TILE = 8


@cuda.jit
def multiply(a, b, c):
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for step in range(a.shape[1] // TILE):
        left[tx, ty] = a[x, ty + step * TILE]
        right[tx, ty] = b[tx + step * TILE, y]
        cuda.syncthreads()
        for k in range(TILE):
            total += left[tx, k] * right[k, ty]
        cuda.syncthreads()
    c[x, y] = total


@cuda.jit
def histogram(values, bins):
    index = cuda.grid(1)
    if index < values.size:
        cuda.atomic.add(bins, values[index], 1)


@cuda.jit
def relax(field, sweeps):
    grid = cuda.cg.this_grid()
    column = cuda.grid(1)
    for sweep in range(sweeps):
        field[sweep + 1, column] = (
            field[sweep, (column - 1) % field.shape[1]] + field[sweep, (column + 1) % field.shape[1]]
        ) / 2
        grid.sync()


def tiled_product() -> Iterator[Value]:
    a, b = rng.standard_normal((64, 40), np.float32), rng.standard_normal((40, 32), np.float32)
    c = cuda.device_array((64, 32), np.float32)
    multiply[(8, 4), (TILE, TILE)](cuda.to_device(a), cuda.to_device(b), c)
    yield Value(c.copy_to_host(), a.astype(np.float64) @ b, 1e-5)


def atomics() -> Iterator[Value]:
    values = rng.integers(0, 50, 20000)
    bins = cuda.to_device(np.zeros(50, np.int64))
    histogram[80, 256](cuda.to_device(values), bins)
    yield Value(bins.copy_to_host(), np.bincount(values, minlength=50))


def cooperative_grid() -> Iterator[Value]:
    field = np.zeros((21, 256))
    field[0] = rng.standard_normal(256)
    on_gpu = cuda.to_device(field)
    relax[4, 64](on_gpu, 20)
    for sweep in range(20):
        field[sweep + 1] = (np.roll(field[sweep], 1) + np.roll(field[sweep], -1)) / 2
    yield Value(on_gpu.copy_to_host(), field, 1e-14)


def ufuncs_and_reductions() -> Iterator[Value]:
    @vectorize([float64(float64, float64)], target="cuda")
    def special(x, y):
        return math.erf(x) + math.lgamma(y) * math.sin(x)

    total = cuda.reduce(lambda x, y: x + y)
    x, y = rng.standard_normal(5000), rng.random(5000) + 0.5
    want = np.array([math.erf(a) + math.lgamma(b) * math.sin(a) for a, b in zip(x, y, strict=True)])
    yield Value(special(x, y), want, 1e-13)
    yield Value(np.float64(total(x)), x.sum(), 1e-12)


def streams() -> Iterator[Value]:
    @cuda.jit
    def step(data):
        index = cuda.grid(1)
        data[index] = data[index] * 3 + 1

    for _ in range(20):
        queues = [cuda.stream() for _ in range(4)]
        hosts = [cuda.pinned_array(512, np.int64) for _ in queues]
        for host in hosts:
            host[:] = rng.integers(0, 1000, 512)
        want = [host * 9 + 4 for host in hosts]
        for queue, host in zip(queues, hosts, strict=True):
            on_gpu = cuda.to_device(host, stream=queue)
            step[2, 256, queue](on_gpu)
            step[2, 256, queue](on_gpu)
            on_gpu.copy_to_host(host, stream=queue)
        for queue, host, wanted in zip(queues, hosts, want, strict=True):
            queue.synchronize()
            yield Value(host.copy(), wanted)


if __name__ == "__main__":
    cases.main(globals())
