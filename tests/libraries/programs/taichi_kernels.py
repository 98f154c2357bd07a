"""Taichi's CUDA back end: fields, atomics, gradients, sparse trees, against NumPy."""

from collections.abc import Iterator

import cases
import numpy as np
import taichi as ti
from cases import Value

ti.init(arch=ti.cuda, offline_cache=False, log_level=ti.ERROR, device_memory_GB=0.25, random_seed=1)
# Taichi continues with the CPU where it finds no GPU.
assert ti.lang.impl.current_cfg().arch == ti.cuda, "Taichi took the CPU"
rng = np.random.default_rng(49)


def stencils() -> Iterator[Value]:
    start = rng.standard_normal((40, 50)).astype(np.float32)
    a, b = ti.field(ti.f32, (40, 50)), ti.field(ti.f32, (40, 50))

    @ti.kernel
    def smooth():
        for i, j in ti.ndrange((1, 39), (1, 49)):
            b[i, j] = (a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1]) * 0.25

    a.from_numpy(start)
    smooth()
    want = np.zeros((40, 50))
    wide = start.astype(np.float64)
    want[1:-1, 1:-1] = (wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]) / 4
    yield Value(b.to_numpy(), want, 1e-6)


def atomics_and_reductions() -> Iterator[Value]:
    values = rng.integers(0, 30, 5000).astype(np.int32)
    bins = ti.field(ti.i32, 30)

    @ti.kernel
    def count(data: ti.types.ndarray()) -> ti.i64:
        total = ti.i64(0)
        for i in range(data.shape[0]):
            ti.atomic_add(bins[data[i]], 1)
            total += data[i]
        return total

    total = count(values)
    yield Value(np.int64(total), values.astype(np.int64).sum())
    yield Value(bins.to_numpy(), np.bincount(values, minlength=30))


def gradients() -> Iterator[Value]:
    x, loss = ti.field(ti.f32, 100, needs_grad=True), ti.field(ti.f32, (), needs_grad=True)

    @ti.kernel
    def energy():
        for i in range(99):
            loss[None] += 0.5 * (x[i + 1] - x[i]) ** 2 + ti.sin(x[i])

    start = rng.standard_normal(100).astype(np.float32)
    x.from_numpy(start)
    with ti.ad.Tape(loss):
        energy()
    step, want = np.diff(start.astype(np.float64)), np.zeros(100)
    want[:-1] += np.cos(start[:-1].astype(np.float64)) - step
    want[1:] += step
    yield Value(x.grad.to_numpy(), want, 1e-5)


def matrices() -> Iterator[Value]:
    @ti.kernel
    def decompose(data: ti.types.ndarray(), out: ti.types.ndarray()):
        for n in range(data.shape[0]):
            m = ti.Matrix.zero(ti.f32, 3, 3)
            for i, j in ti.static(ti.ndrange(3, 3)):
                m[i, j] = data[n, i, j]
            product = m @ m.inverse() + m.transpose()
            for i, j in ti.static(ti.ndrange(3, 3)):
                out[n, i, j] = product[i, j]

    data = (rng.standard_normal((200, 3, 3)) + 4 * np.eye(3)).astype(np.float32)
    out = np.zeros_like(data)
    decompose(data, out)
    yield Value(out, np.eye(3) + data.astype(np.float64).transpose(0, 2, 1), 1e-5)


if __name__ == "__main__":
    cases.main(globals())
