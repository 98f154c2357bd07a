"""Ordinary numba-cuda programs against NumPy."""

from __future__ import annotations

import gc
import math
import sys
import traceback
import warnings

import numpy as np
from numba import cuda, float32, int32

warnings.filterwarnings("ignore")
rng = np.random.default_rng(7)


def vector_add() -> None:
    @cuda.jit
    def add(a, b, c):
        i = cuda.grid(1)
        if i < c.size:
            c[i] = a[i] + b[i]

    for dtype in (np.float32, np.float64, np.int32, np.int64, np.uint8, np.complex64):
        a, b = (rng.integers(0, 100, 10_001).astype(dtype) for _ in range(2))
        c = np.zeros_like(a)
        add[80, 128](a, b, c)
        assert np.array_equal(c, a + b), dtype


def tiled_matrix_multiply() -> None:
    tile = 16

    @cuda.jit
    def multiply(a, b, c):
        left = cuda.shared.array((tile, tile), float32)
        right = cuda.shared.array((tile, tile), float32)
        x, y = cuda.grid(2)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        total = float32(0)
        for step in range((a.shape[1] + tile - 1) // tile):
            left[ty, tx] = 0
            right[ty, tx] = 0
            if y < a.shape[0] and step * tile + tx < a.shape[1]:
                left[ty, tx] = a[y, step * tile + tx]
            if x < b.shape[1] and step * tile + ty < b.shape[0]:
                right[ty, tx] = b[step * tile + ty, x]
            cuda.syncthreads()
            for k in range(tile):
                total += left[ty, k] * right[k, tx]
            cuda.syncthreads()
        if y < c.shape[0] and x < c.shape[1]:
            c[y, x] = total

    a, b = rng.random((70, 45), np.float32), rng.random((45, 83), np.float32)
    c = cuda.device_array((70, 83), np.float32)
    multiply[(6, 5), (tile, tile)](cuda.to_device(a), cuda.to_device(b), c)
    np.testing.assert_allclose(c.copy_to_host(), a @ b, rtol=1e-5)


def reductions_and_atomics() -> None:
    @cuda.reduce
    def total(a, b):
        return a + b

    values = rng.random(100_003)
    np.testing.assert_allclose(total(values), values.sum(), rtol=1e-12)

    @cuda.jit
    def count(data, bins):
        local = cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        if t < 32:
            local[t] = 0
        cuda.syncthreads()
        for i in range(cuda.grid(1), data.size, cuda.gridsize(1)):
            cuda.atomic.add(local, data[i], 1)
        cuda.syncthreads()
        if t < 32:
            cuda.atomic.add(bins, t, local[t])

    data = rng.integers(0, 32, 50_000).astype(np.int32)
    bins = np.zeros(32, np.int32)
    count[8, 64](data, bins)
    assert np.array_equal(bins, np.bincount(data, minlength=32))

    @cuda.jit
    def extremes(data, out):
        i = cuda.grid(1)
        if i < data.size:
            cuda.atomic.max(out, 0, data[i])
            cuda.atomic.min(out, 1, data[i])

    floats = rng.normal(size=1000)
    out = np.zeros(2)
    extremes[8, 128](floats, out)
    assert (out[0], out[1]) == (floats.max(), floats.min())


def warps_shuffle_and_vote() -> None:
    @cuda.jit
    def warp_sum(data, out, votes):
        i = cuda.grid(1)
        value = data[i]
        for offset in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        ballot = cuda.ballot_sync(0xFFFFFFFF, data[i] > 50)
        if cuda.laneid == 0:
            out[i // 32] = value
            votes[i // 32] = ballot

    data = rng.integers(0, 100, 256).astype(np.int32)
    out, votes = np.zeros(8, np.int32), np.zeros(8, np.uint32)
    warp_sum[2, 128](data, out, votes)
    assert np.array_equal(out, data.reshape(8, 32).sum(1))
    expected = [sum(int(v > 50) << lane for lane, v in enumerate(row)) for row in data.reshape(8, 32)]
    assert votes.tolist() == expected


def mathematics() -> None:
    @cuda.jit
    def compute(x, out):
        i = cuda.grid(1)
        if i < x.size:
            v = x[i]
            out[0, i] = math.sin(v)
            out[1, i] = math.exp(v)
            out[2, i] = math.sqrt(abs(v))
            out[3, i] = math.log(abs(v) + 1)
            out[4, i] = math.tanh(v)
            out[5, i] = math.erf(v)
            out[6, i] = v**3
            out[7, i] = math.atan2(v, 2.0)

    for dtype, tolerance in ((np.float32, 2e-6), (np.float64, 1e-14)):
        x = rng.normal(size=1000).astype(dtype) * 3
        out = np.zeros((8, x.size), dtype)
        compute[8, 128](x, out)
        wide = x.astype(np.float64)
        erf = np.array([math.erf(v) for v in wide])
        log = np.log(np.abs(wide) + 1)
        expected = [np.sin(wide), np.exp(wide), np.sqrt(np.abs(wide)), log, np.tanh(wide), erf, wide**3]
        expected.append(np.arctan2(wide, 2.0))
        for row, want in zip(out, expected, strict=True):
            np.testing.assert_allclose(row, want, rtol=tolerance * 4, atol=tolerance)


def streams_and_events() -> None:
    @cuda.jit
    def scale(a, factor):
        i = cuda.grid(1)
        if i < a.size:
            a[i] *= factor

    streams = [cuda.stream() for _ in range(4)]
    hosts = [cuda.pinned_array(1000, np.float64) for _ in streams]
    for n, host in enumerate(hosts):
        host[:] = n + 1
    begin, end = cuda.event(), cuda.event()
    begin.record()
    for stream, host in zip(streams, hosts, strict=True):
        device = cuda.to_device(host, stream)
        for _ in range(10):
            scale[8, 128, stream](device, 2.0)
        device.copy_to_host(host, stream)
    for stream in streams:
        stream.synchronize()
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) > 0
    for n, host in enumerate(hosts):
        assert (host == (n + 1) * 1024.0).all()


def local_and_constant_memory() -> None:
    table = np.arange(16, dtype=np.float32) ** 2

    @cuda.jit
    def look_up(out):
        constant = cuda.const.array_like(table)
        mine = cuda.local.array(16, float32)
        i = cuda.grid(1)
        for k in range(16):
            mine[k] = constant[(i + k) % 16]
        total = float32(0)
        for k in range(16):
            total += mine[(k * 7) % 16] * k
        out[i] = total

    out = np.zeros(64, np.float32)
    look_up[2, 32](out)
    expected = [sum(table[(i + (k * 7) % 16) % 16] * k for k in range(16)) for i in range(64)]
    assert np.array_equal(out, np.array(expected, np.float32))


def device_functions_and_recursion() -> None:
    @cuda.jit(device=True)
    def collatz(n):
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    @cuda.jit
    def run(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = collatz(i + 1)

    def expected(n: int) -> int:
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    out = np.zeros(300, np.int64)
    run[3, 128](out)
    assert out.tolist() == [expected(i + 1) for i in range(300)]


def faults_become_exceptions() -> None:
    @cuda.jit(debug=True, opt=False)
    def divide(a):
        a[0] = 1 // a[1]

    try:
        divide[1, 1](np.zeros(2, np.int64))
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError("no exception")


def memory_info_and_occupancy() -> None:
    context = cuda.current_context()
    # What earlier cases left would otherwise be freed in between.
    gc.collect()
    context.deallocations.clear()
    free, total = context.get_memory_info()
    array = cuda.device_array(1_000_000, np.float64)
    assert context.get_memory_info()[0] <= free - array.nbytes
    assert total == 8 << 30
    assert cuda.get_current_device().compute_capability == (8, 0)

    @cuda.jit
    def nothing(a):
        a[0] = 0

    nothing[1, 1](array)
    assert array.copy_to_host()[0] == 0


if __name__ == "__main__":
    for name in sys.argv[1:]:
        try:
            globals()[name]()
        except Exception:
            traceback.print_exc()
        else:
            print(name, flush=True)
