"""cuML against scikit-learn on the CPU: linear models, decompositions, clusters, neighbours, scores and distances."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import cuml
import numpy as np
import sklearn.cluster
import sklearn.decomposition
import sklearn.linear_model
import sklearn.metrics
import sklearn.neighbors
from cases import Value

rng = np.random.default_rng(59)
X = rng.standard_normal((400, 8))
Y = X @ rng.standard_normal(8) + 3 + 0.1 * rng.standard_normal(400)
CENTRES = 8 * rng.standard_normal((5, 8))
GROUPS = np.concatenate([centre + rng.standard_normal((60, 8)) for centre in CENTRES])


def linear_models() -> Iterator[Value]:
    for name, options in (("LinearRegression", {}), ("Ridge", {"alpha": 2.0})):
        got = getattr(cuml, name)(output_type="numpy", **options).fit(X, Y)
        want = getattr(sklearn.linear_model, name)(**options).fit(X, Y)
        yield Value(got.coef_, want.coef_, 1e-9)
        yield Value(got.predict(X), want.predict(X), 1e-9)
    got = cuml.LogisticRegression(output_type="numpy", tol=1e-8, max_iter=2000).fit(X, (Y > 3).astype(np.int32))
    want = sklearn.linear_model.LogisticRegression(tol=1e-8, max_iter=2000).fit(X, Y > 3)
    yield Value(got.coef_.ravel(), want.coef_.ravel(), 1e-3)


def decompositions() -> Iterator[Value]:
    got = cuml.PCA(n_components=3, output_type="numpy").fit(X)
    want = sklearn.decomposition.PCA(n_components=3).fit(X)
    yield Value(got.explained_variance_, want.explained_variance_, 1e-9)
    # A component's sign is free.
    yield Value(np.abs(got.transform(X)), np.abs(want.transform(X)), 1e-8)
    singular = cuml.TruncatedSVD(n_components=3, output_type="numpy").fit(X)
    yield Value(singular.singular_values_, np.linalg.svd(X, compute_uv=False)[:3], 1e-8)


def clusters() -> Iterator[Value]:
    got = cuml.KMeans(n_clusters=5, init=CENTRES, n_init=1, output_type="numpy").fit(GROUPS)
    want = sklearn.cluster.KMeans(n_clusters=5, init=CENTRES, n_init=1).fit(GROUPS)
    yield Value(got.cluster_centers_, want.cluster_centers_, 1e-9)
    yield Value(got.labels_, want.labels_)
    dense = cuml.DBSCAN(eps=3.0, min_samples=4, output_type="numpy").fit(GROUPS)
    yield Value(dense.labels_, sklearn.cluster.DBSCAN(eps=3.0, min_samples=4).fit(GROUPS).labels_)


def neighbours() -> Iterator[Value]:
    points, queries = X.astype(np.float32), X[:50].astype(np.float32) + np.float32(0.01)
    found = cuml.NearestNeighbors(n_neighbors=6, algorithm="brute", output_type="numpy").fit(points)
    distances, rows = found.kneighbors(queries)
    wanted = sklearn.neighbors.NearestNeighbors(n_neighbors=6, algorithm="brute").fit(points).kneighbors(queries)
    yield Value(distances, wanted[0], 1e-3)
    yield Value(rows, wanted[1])


def scores() -> Iterator[Value]:
    guess = Y + rng.standard_normal(400)
    yield Value(np.float64(cuml.metrics.r2_score(Y, guess)), sklearn.metrics.r2_score(Y, guess), 1e-12)
    labels = rng.integers(0, 4, (2, 400)).astype(np.int32)
    got = cuml.metrics.adjusted_rand_score(*labels)
    yield Value(np.float64(got), sklearn.metrics.adjusted_rand_score(*labels), 1e-12)


def distances() -> Iterator[Value]:
    for metric in ("euclidean", "cityblock", "cosine"):
        got = cuml.metrics.pairwise_distances(X, metric=metric)
        yield Value(got, sklearn.metrics.pairwise_distances(X, metric=metric), 1e-6)


if __name__ == "__main__":
    cases.main(globals())
