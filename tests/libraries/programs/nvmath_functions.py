"""nvmath: transforms, products with epilogues, batches, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import numpy as np
import nvmath
from cases import Value
from nvmath.linalg.advanced import MatmulEpilog, matmul

rng = np.random.default_rng(46)


def transforms() -> Iterator[Value]:
    for shape, axes in (((8, 128), [1]), ((16, 20), [0, 1]), ((4, 6, 10), [0, 1, 2])):
        a = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        got = nvmath.fft.fft(a, axes=axes, execution="cuda")
        yield Value(got, np.fft.fftn(a, axes=axes), 1e-12)
        yield Value(nvmath.fft.ifft(got, axes=axes, execution="cuda") / np.prod([shape[x] for x in axes]), a, 1e-12)
    real = rng.standard_normal((6, 100))
    yield Value(nvmath.fft.rfft(real, axes=[1], execution="cuda"), np.fft.rfft(real), 1e-12)


def products() -> Iterator[Value]:
    for kind, within in ((np.float32, 1e-5), (np.float64, 1e-13), (np.complex64, 1e-5)):
        a, b = rng.standard_normal((48, 70)).astype(kind), rng.standard_normal((70, 32)).astype(kind)
        yield Value(
            matmul(a, b), a.astype(np.complex128) @ b if kind is np.complex64 else a.astype(np.float64) @ b, within
        )


def epilogues() -> Iterator[Value]:
    a, b = rng.standard_normal((32, 64), np.float32), rng.standard_normal((64, 16), np.float32)
    bias = rng.standard_normal((32, 1), np.float32)
    got = matmul(a, b, epilog=MatmulEpilog.RELU_BIAS, epilog_inputs={"bias": bias})
    yield Value(got, np.maximum(a.astype(np.float64) @ b + bias, 0), 1e-5)


def batches_and_sums() -> Iterator[Value]:
    a, b, c = (rng.standard_normal(shape) for shape in ((5, 24, 300), (5, 300, 16), (5, 24, 16)))
    yield Value(matmul(a, b, c, alpha=1.5, beta=-0.5), 1.5 * (a @ b) - 0.5 * c, 1e-12)


if __name__ == "__main__":
    cases.main(globals())
