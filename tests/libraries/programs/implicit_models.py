"""implicit: matrix factorisation on the GPU from the same start as on the CPU, and the nearest neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import numpy as np
import scipy.sparse
from cases import Value
from wheels import library

# The wheel of implicit asks for these by name; rmm loads its own.
for name in ("libcudart", "libcublasLt", "libcublas", "libcurand"):
    library(name)

import implicit.cpu.als  # noqa: E402
import implicit.gpu.als  # noqa: E402
from implicit.gpu import KnnQuery, Matrix  # noqa: E402

rng = np.random.default_rng(48)
USERS, ITEMS, FACTORS = 120, 80, 32


def ratings() -> scipy.sparse.csr_matrix:
    dense = np.where(rng.random((USERS, ITEMS)) < 0.15, rng.integers(1, 5, (USERS, ITEMS)), 0)
    return scipy.sparse.csr_matrix(dense.astype(np.float32))


def alternating_least_squares() -> Iterator[Value]:
    """The CPU's conjugate gradient, the same three steps, from the same start."""
    data = ratings()
    start = [(rng.random((count, FACTORS)) * 0.1).astype(np.float32) for count in (USERS, ITEMS)]
    options = {"factors": FACTORS, "regularization": 0.05, "iterations": 3, "random_state": 1}
    gpu = implicit.gpu.als.AlternatingLeastSquares(**options)
    gpu.user_factors, gpu.item_factors = (Matrix(each) for each in start)
    gpu.fit(data, show_progress=False)
    cpu = implicit.cpu.als.AlternatingLeastSquares(**options, use_cg=True, num_threads=1)
    cpu.user_factors, cpu.item_factors = (each.copy() for each in start)
    cpu.fit(data, show_progress=False)
    yield Value(gpu.user_factors.to_numpy(), cpu.user_factors, 1e-3)
    yield Value(gpu.item_factors.to_numpy(), cpu.item_factors, 1e-3)


def nearest_neighbours() -> Iterator[Value]:
    items, queries = rng.standard_normal((500, FACTORS), np.float32), rng.standard_normal((40, FACTORS), np.float32)
    ids, scores = KnnQuery().topk(Matrix(items), Matrix(queries), 10)
    exact = queries.astype(np.float64) @ items.astype(np.float64).T
    yield Value(np.asarray(scores), -np.sort(-exact, axis=1)[:, :10], 1e-5)
    yield Value(np.asarray(ids).astype(np.int64), np.argsort(-exact, axis=1)[:, :10])


def recommendations() -> Iterator[Value]:
    """A model's recommendations, without items that its user knows, follow from its factors."""
    data = ratings()
    model = implicit.gpu.als.AlternatingLeastSquares(factors=FACTORS, iterations=2, random_state=7)
    model.fit(data, show_progress=False)
    ids, scores = model.recommend(np.arange(USERS), data, N=5)
    users, items = model.user_factors.to_numpy().astype(np.float64), model.item_factors.to_numpy().astype(np.float64)
    exact = np.where(data.toarray() > 0, -np.inf, users @ items.T)
    yield Value(np.asarray(scores), -np.sort(-exact, axis=1)[:, :5], 1e-4)
    yield Value(
        np.take_along_axis(exact, np.asarray(ids).astype(np.int64), axis=1), -np.sort(-exact, axis=1)[:, :5], 1e-4
    )


if __name__ == "__main__":
    cases.main(globals())
