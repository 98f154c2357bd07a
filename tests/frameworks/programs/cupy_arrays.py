"""CuPy as a drop-in for NumPy: elementwise functions, reductions, indexing, sorting."""

from __future__ import annotations

import cases
import cupy as cp
import numpy as np

rng = np.random.default_rng(7)


def elementwise_over_dtypes():
    results = []
    for dtype in "?bBhHiIlLefdFD":
        a, b = (rng.integers(0, 10, 1000).astype(dtype) for _ in range(2))
        got = cp.asarray(a) + cp.asarray(b)
        assert np.array_equal(got.get(), a + b), dtype
        results.append(got)
    a, b = rng.integers(-99, 99, (2, 1000))
    b[b == 0] = 7
    x, y = cp.asarray(a), cp.asarray(b)
    for got, want in (
        (x * y - x, a * b - a), (x // y, a // b), (x % y, a % b), (x & y, a & b), (x ^ y, a ^ b), (x < y, a < b),
        (cp.maximum(x, y), np.maximum(a, b)), (cp.abs(x), np.abs(a)), (x << 3, a << 3), (cp.gcd(x, y), np.gcd(a, b)),
    ):  # fmt: skip
        assert np.array_equal(got.get(), want)
        results.append(got)
    return results


def mathematical_functions():
    names = [
        "sin",
        "cos",
        "tan",
        "arctan",
        "exp",
        "expm1",
        "sinh",
        "cosh",
        "tanh",
        "arcsinh",
        "floor",
        "ceil",
        "rint",
        "sign",
        "square",
        "cbrt",
    ]
    positive = ["log", "log2", "log10", "log1p", "sqrt", "reciprocal"]
    results = []
    for dtype, tolerance in (("f", 1e-6), ("d", 1e-14)):
        a = rng.normal(size=2000).astype(dtype)
        for name in names + positive:
            given = np.abs(a) + dtype.islower() if name in positive else a
            given = given.astype(dtype)
            got = getattr(cp, name)(cp.asarray(given))
            want = getattr(np, name)(given)
            np.testing.assert_allclose(got.get(), want, rtol=4 * tolerance, atol=tolerance, err_msg=f"{name} {dtype}")
            results.append(got)
    a, b = rng.normal(size=(2, 500))
    for name in ("arctan2", "hypot", "copysign", "logaddexp", "fmod", "nextafter"):
        got = getattr(cp, name)(cp.asarray(a), cp.asarray(b))
        np.testing.assert_allclose(got.get(), getattr(np, name)(a, b), rtol=1e-13, err_msg=name)
        results.append(got)
    c = (a + 1j * b).astype("F")
    got = cp.exp(cp.asarray(c)) * cp.conj(cp.asarray(c))
    np.testing.assert_allclose(got.get(), np.exp(c) * np.conj(c), rtol=1e-5)
    return [*results, got]


def broadcasting_and_views():
    a, b = rng.random((7, 1, 5)), rng.random((6, 1))
    got = cp.asarray(a) * cp.asarray(b) + 1.5
    assert np.array_equal(got.get(), a * b + 1.5)
    x = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    g = cp.asarray(x)
    pairs = [
        (g[::2, 1:-1, ::-1] + 1, x[::2, 1:-1, ::-1] + 1),
        (g.transpose(2, 0, 1).reshape(12, 10), x.transpose(2, 0, 1).reshape(12, 10)),
        (cp.concatenate([g, g[:1]]), np.concatenate([x, x[:1]])),
        (cp.stack([g, g * 2], 1), np.stack([x, x * 2], 1)),
        (cp.pad(g[0], 2, mode="reflect"), np.pad(x[0], 2, mode="reflect")),
        (cp.roll(g, 3, axis=1), np.roll(x, 3, axis=1)),
        (cp.tile(g[0], (2, 3)), np.tile(x[0], (2, 3))),
        (cp.einsum("ijk->ki", g), np.einsum("ijk->ki", x)),
    ]
    g2, x2 = g.copy(), x.copy()
    g2[1:3, :, 2] *= 10
    x2[1:3, :, 2] *= 10
    for mine, want in [*pairs, (g2, x2)]:
        assert np.array_equal(mine.get(), want)
    return [got, *(mine for mine, _ in pairs), g2]


def reductions():
    results = []
    # Each pair of function and type is a kernel of CUB that CuPy compiles, for seconds: a few must do.
    for dtype in "ifD":
        a = (rng.random((37, 401)) * 9).astype(dtype)
        g = cp.asarray(a)
        for axis in (None, 0, 1):
            np.testing.assert_allclose(g.sum(axis).get(), a.sum(axis), rtol=2e-6)
            results.append(g.sum(axis))
    a = rng.random((60, 70))
    g = cp.asarray(a)
    for name in ("max", "argmin", "all"):
        for axis in (None, 0, 1):
            got = getattr(g, name)(axis)
            assert np.array_equal(got.get(), getattr(a, name)(axis)), name
            results.append(got)
    for name in ("mean", "var"):
        got = getattr(g, name)(1)
        np.testing.assert_allclose(got.get(), getattr(a, name)(1), rtol=1e-12, err_msg=name)
        results.append(got)
    assert int(cp.count_nonzero(g > 0.5)) == np.count_nonzero(a > 0.5)
    return results


def indexing_and_scattering():
    a = rng.integers(0, 1000, (50, 40))
    rows, columns = rng.integers(0, 50, 300), rng.integers(0, 40, 300)
    g, r, c = cp.asarray(a), cp.asarray(rows), cp.asarray(columns)
    pairs = [
        (g[r], a[rows]),
        (g[r, c], a[rows, columns]),
        (g[g > 500], a[a > 500]),
        (cp.take(g, c, axis=1), np.take(a, columns, axis=1)),
        (cp.where(g % 2 == 0, g, -g), np.where(a % 2 == 0, a, -a)),
        (cp.choose(g[0] % 3, g[1:4]), np.choose(a[0] % 3, a[1:4])),
        (cp.stack(cp.nonzero(g > 900)), np.stack(np.nonzero(a > 900))),
        (cp.compress(g[0] > 300, g, axis=1), np.compress(a[0] > 300, a, axis=1)),
    ]
    g2, a2 = g.copy(), a.copy()
    g2[g2 < 100] = -1
    a2[a2 < 100] = -1
    cp.add.at(g2, (r, c), 5)
    np.add.at(a2, (rows, columns), 5)
    cp.put(g2, cp.arange(10), 77)
    np.put(a2, np.arange(10), 77)
    counts = cp.bincount(c, minlength=45)
    for mine, want in [*pairs, (g2, a2), (counts, np.bincount(columns, minlength=45))]:
        assert np.array_equal(mine.get(), want)
    return [*(mine for mine, _ in pairs), g2, counts]


def sorting_and_scanning():
    results = []
    for dtype in "bilfd":
        a = (rng.normal(size=5000) * 100).astype(dtype)
        g = cp.asarray(a)
        assert np.array_equal(cp.sort(g).get(), np.sort(a)), dtype
        assert np.array_equal(a[cp.argsort(g).get()], np.sort(a)), dtype
        results += [cp.sort(g), cp.argsort(g)]
    a = rng.integers(0, 300, (40, 50))
    g = cp.asarray(a)
    unique, inverse, counts = cp.unique(g, return_inverse=True, return_counts=True)
    want = np.unique(a, return_inverse=True, return_counts=True)
    for mine, theirs in zip((unique, inverse, counts), want, strict=True):
        assert np.array_equal(mine.get().ravel(), theirs.ravel())
    pairs = [
        (cp.sort(g, axis=0), np.sort(a, axis=0)),
        (cp.cumsum(g), np.cumsum(a)),
        (cp.cumsum(g, axis=0), np.cumsum(a, axis=0)),
        (cp.cumprod(g[0] % 3 + 1), np.cumprod(a[0] % 3 + 1)),
        (cp.diff(g, axis=1), np.diff(a, axis=1)),
        (cp.searchsorted(unique, g[0]), np.searchsorted(want[0], a[0])),
        (cp.lexsort(cp.stack([g[0], g[1]])), np.lexsort(np.stack([a[0], a[1]]))),
        (cp.partition(g[3], 10)[10], np.partition(a[3], 10)[10]),
        (cp.histogram(g, bins=20)[0], np.histogram(a, bins=20)[0]),
        (cp.percentile(g, 30), np.percentile(a, 30)),
    ]
    for mine, theirs in pairs:
        assert np.array_equal(mine.get(), theirs)
    return [*results, unique, inverse, counts, *(mine for mine, _ in pairs)]


if __name__ == "__main__":
    cases.main(globals())
