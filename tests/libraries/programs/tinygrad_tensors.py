"""tinygrad on its CUDA device, by its own PTX, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import numpy as np
from cases import Value
from tinygrad import Device, Tensor, TinyJit

assert Device.DEFAULT == "CUDA", Device.DEFAULT
rng = np.random.default_rng(44)


def products() -> Iterator[Value]:
    for m, n, k in ((33, 17, 65), (64, 64, 64), (1, 128, 300)):
        a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
        yield Value((Tensor(a) @ Tensor(b)).numpy(), a.astype(np.float64) @ b, 1e-5)


def softmax_and_reductions() -> Iterator[Value]:
    a = rng.standard_normal((20, 50), np.float32)
    e = np.exp(a.astype(np.float64) - a.max(1, keepdims=True))
    yield Value(Tensor(a).softmax().numpy(), e / e.sum(1, keepdims=True), 1e-5)
    yield Value(Tensor(a).max(axis=0).numpy(), a.max(0))
    yield Value(Tensor(a).cumsum(axis=1).numpy(), a.astype(np.float64).cumsum(1), 1e-5)
    yield Value(Tensor(a).sort(dim=1)[0].numpy(), np.sort(a, axis=1))


def convolution() -> Iterator[Value]:
    image, kernel = rng.standard_normal((2, 3, 12, 12), np.float32), rng.standard_normal((4, 3, 3, 3), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (3, 3), axis=(2, 3))
    yield Value(Tensor(image).conv2d(Tensor(kernel)).numpy(), np.einsum("nchwij,ocij->nohw", windows, kernel), 1e-5)


def gradients_of_a_step() -> Iterator[Value]:
    x, y = rng.standard_normal((40, 8), np.float32), rng.standard_normal((40, 1), np.float32)
    start = rng.standard_normal((8, 1)).astype(np.float32)
    w = Tensor(start)
    (gradient,) = ((Tensor(x) @ w - Tensor(y)) ** 2).mean().gradient(w)
    yield Value(gradient.numpy(), 2 / 40 * x.T.astype(np.float64) @ (x @ start - y), 1e-5)


def jitted() -> Iterator[Value]:
    @TinyJit
    def step(a: Tensor) -> Tensor:
        return (a * 2 + 1).sin().contiguous().realize()

    for _ in range(6):
        a = rng.standard_normal(700).astype(np.float32)
        yield Value(step(Tensor(a).realize()).numpy(), np.sin(a.astype(np.float64) * 2 + 1), 1e-5)


if __name__ == "__main__":
    cases.main(globals())
