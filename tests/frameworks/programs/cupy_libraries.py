"""cuBLAS, cuFFT and cuRAND through CuPy. They ship PTX next to their machine code."""

from __future__ import annotations

import cases
import cupy as cp
import numpy as np

rng = np.random.default_rng(7)


def matrix_products():
    results = []
    for dtype, tolerance in (("f", 1e-5), ("d", 1e-13), ("F", 1e-5), ("D", 1e-13)):
        a, b = rng.random((65, 33)).astype(dtype), rng.random((33, 47)).astype(dtype)
        got = cp.asarray(a) @ cp.asarray(b)
        np.testing.assert_allclose(got.get(), a @ b, rtol=tolerance, err_msg=dtype)
        results.append(got)
    a, b = (rng.random((64, 64)).astype(np.float16) for _ in range(2))
    got = cp.asarray(a) @ cp.asarray(b)
    np.testing.assert_allclose(got.get(), a.astype(np.float64) @ b.astype(np.float64), rtol=2e-3)
    results.append(got)
    a, b = rng.random((4, 20, 30)), rng.random((4, 30, 10))
    v = rng.random(30)
    for got, want in (
        (cp.matmul(cp.asarray(a), cp.asarray(b)), a @ b),
        (cp.dot(cp.asarray(a[0]), cp.asarray(v)), a[0] @ v),
        (cp.vdot(cp.asarray(v), cp.asarray(v)), v @ v),
        (cp.tensordot(cp.asarray(a), cp.asarray(b), axes=([0, 2], [0, 1])), np.tensordot(a, b, axes=([0, 2], [0, 1]))),
        (cp.asarray(a[0]).T @ cp.asarray(a[0]), a[0].T @ a[0]),
    ):
        np.testing.assert_allclose(got.get(), want, rtol=1e-12)
        results.append(got)
    return results


def fourier_transforms():
    results = []
    for n in (256, 1000):
        a = rng.random(n) + 1j * rng.random(n)
        spectrum = cp.fft.fft(cp.asarray(a))
        np.testing.assert_allclose(spectrum.get(), np.fft.fft(a), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(cp.fft.ifft(spectrum).get(), a, rtol=1e-10, atol=1e-12)
        results.append(spectrum)
    a = rng.random((16, 128))
    for got, want in (
        (cp.fft.rfft(cp.asarray(a)), np.fft.rfft(a)),
        (cp.fft.irfft(cp.fft.rfft(cp.asarray(a))), a),
        (cp.fft.fft2(cp.asarray(a)), np.fft.fft2(a)),
        (cp.fft.fftshift(cp.fft.fftfreq(64)), np.fft.fftshift(np.fft.fftfreq(64))),
    ):
        np.testing.assert_allclose(got.get(), want, rtol=1e-10, atol=1e-10)
        results.append(got)
    single = cp.fft.fft(cp.asarray(a.astype("F")))
    np.testing.assert_allclose(single.get(), np.fft.fft(a), rtol=1e-4, atol=1e-4)
    return [*results, single]


def random_numbers():
    cp.random.seed(7)
    uniform = cp.random.rand(20_000)
    normal = cp.random.standard_normal(20_000, dtype=cp.float32)
    whole = cp.random.randint(0, 10, 20_000)
    order = cp.random.permutation(1000)
    u, n, w = uniform.get(), normal.get(), whole.get()
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.005
    assert abs(n.mean()) < 0.03 and abs(n.std() - 1) < 0.03 and abs((n**3).mean()) < 0.1
    counts = np.bincount(w, minlength=10)
    assert counts.size == 10 and counts.min() > 1700 and counts.max() < 2300
    assert np.array_equal(np.sort(order.get()), np.arange(1000))
    cp.random.seed(7)
    assert np.array_equal(cp.random.rand(20_000).get(), u)
    return [uniform, normal, whole, order]


if __name__ == "__main__":
    cases.main(globals())
