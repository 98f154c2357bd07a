"""cuML against scikit-learn and closed forms."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import cuml
import numpy as np
import sklearn.decomposition
import sklearn.neighbors
from cases import Value

rng = np.random.default_rng(57)


def linear_regression() -> Iterator[Value]:
    x = rng.standard_normal((500, 6))
    y = x @ np.arange(1.0, 7.0) + 3 + rng.standard_normal(500) * 0.01
    model = cuml.LinearRegression().fit(x, y)
    want = np.linalg.lstsq(np.column_stack([x, np.ones(500)]), y, rcond=None)[0]
    yield Value(np.asarray(model.coef_).ravel(), want[:-1], 1e-9)


def nearest_neighbours() -> Iterator[Value]:
    x, queries = rng.standard_normal((800, 5)), rng.standard_normal((50, 5))
    got = cuml.neighbors.NearestNeighbors(n_neighbors=6, algorithm="brute").fit(x).kneighbors(queries)
    want = sklearn.neighbors.NearestNeighbors(n_neighbors=6, algorithm="brute").fit(x).kneighbors(queries)
    yield Value(np.asarray(got[0]), want[0], 1e-4)
    yield Value(np.asarray(got[1]).astype(int), want[1])


def principal_components() -> Iterator[Value]:
    x = rng.standard_normal((400, 8)) * np.arange(1, 9)
    got = cuml.PCA(n_components=3, svd_solver="full").fit(x)
    want = sklearn.decomposition.PCA(n_components=3, svd_solver="full").fit(x)
    yield Value(np.asarray(got.explained_variance_).ravel(), want.explained_variance_, 1e-6)
    yield Value(np.abs(np.asarray(got.components_)), np.abs(want.components_), 1e-5)


def kmeans() -> Iterator[Value]:
    """Each point belongs to the nearest of the centres, and these are the means of their points."""
    centres = rng.standard_normal((5, 4)) * 30
    x = np.concatenate([centre + rng.standard_normal((100, 4)) for centre in centres])
    model = cuml.KMeans(n_clusters=5, init=centres + 1, n_init=1, max_iter=50).fit(x)
    found = np.asarray(model.cluster_centers_)
    owner = ((x[:, None] - found[None]) ** 2).sum(-1).argmin(1)
    yield Value(np.asarray(model.labels_).astype(int), owner)
    yield Value(found, np.array([x[owner == index].mean(0) for index in range(5)]), 1e-6)


if __name__ == "__main__":
    cases.main(globals())
