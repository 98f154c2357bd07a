"""faiss-gpu: exact and inverted indexes, k-means, and many searches, against NumPy. faiss has one handle of cuBLAS and
works on two streams, so that each search is a test of both.
"""

from __future__ import annotations

from collections.abc import Iterator

import cases
import faiss
import numpy as np
from cases import Value
from runtime import ROUNDS

WITHIN = 1e-5
rng = np.random.default_rng(38)
resources = faiss.StandardGpuResources()


def distances(queries: np.ndarray, stored: np.ndarray) -> np.ndarray:
    wide = queries.astype(np.float64)[:, None] - stored.astype(np.float64)[None]
    return (wide**2).sum(-1)


def nearest(index: faiss.Index, queries: np.ndarray, stored: np.ndarray, count: int) -> Iterator[Value]:
    """The ids of the nearest; where two are as near, either may be named, so distances by id are compared as well."""
    found, ids = index.search(queries, count)
    exact = distances(queries, stored)
    yield Value(found, np.sort(exact, axis=1)[:, :count], WITHIN)
    yield Value(np.take_along_axis(exact, ids, axis=1).astype(np.float32), np.sort(exact, axis=1)[:, :count], WITHIN)


def many_searches() -> Iterator[Value]:
    """Few vectors, many queries: each round stores others."""
    queries = rng.standard_normal((2000, 16), np.float32)
    index = faiss.GpuIndexFlatL2(resources, 16)
    for _ in range(ROUNDS):
        stored = rng.standard_normal((8, 16), np.float32)
        index.reset()
        index.add(stored)
        found, ids = index.search(queries, 1)
        exact = distances(queries, stored)
        yield Value(ids[:, 0], exact.argmin(1))
        yield Value(found[:, 0], exact.min(1), WITHIN)


def flat() -> Iterator[Value]:
    stored, queries = rng.standard_normal((3000, 24), np.float32), rng.standard_normal((50, 24), np.float32)
    index = faiss.GpuIndexFlatL2(resources, 24)
    index.add(stored)
    yield from nearest(index, queries, stored, 10)
    products = faiss.GpuIndexFlatIP(resources, 24)
    products.add(stored)
    found, _ = products.search(queries, 5)
    exact = queries.astype(np.float64) @ stored.astype(np.float64).T
    yield Value(found, -np.sort(-exact, axis=1)[:, :5], WITHIN)


def inverted_lists() -> Iterator[Value]:
    """With all lists searched the result is exact."""
    stored, queries = rng.standard_normal((2000, 16), np.float32), rng.standard_normal((40, 16), np.float32)
    index = faiss.GpuIndexIVFFlat(resources, 16, 12, faiss.METRIC_L2)
    index.train(stored)
    index.add(stored)
    index.nprobe = 12
    yield from nearest(index, queries, stored, 8)


def quantized() -> Iterator[Value]:
    """The same index on the CPU, copied to the GPU, finds the same distances."""
    stored, queries = rng.standard_normal((3000, 32), np.float32), rng.standard_normal((30, 32), np.float32)
    on_cpu = faiss.index_factory(32, "IVF8,PQ8")
    faiss.downcast_index(on_cpu).pq.cp.niter = 4
    on_cpu.train(stored)
    on_cpu.add(stored)
    on_cpu.nprobe = 8
    on_gpu = faiss.index_cpu_to_gpu(resources, 0, on_cpu)
    on_gpu.nprobe = 8
    yield Value(on_gpu.search(queries, 6)[0], on_cpu.search(queries, 6)[0], 1e-4)


def kmeans() -> Iterator[Value]:
    """Each point belongs to the nearest of the centres that were found, and these are the means of their points."""
    centres = rng.standard_normal((6, 8), np.float32) * 20
    points = np.concatenate([centre + rng.standard_normal((200, 8), np.float32) for centre in centres]).astype(
        np.float32
    )
    found = faiss.Kmeans(8, 6, niter=12, nredo=3, seed=5, gpu=True)
    found.train(points)
    exact = distances(points, found.centroids)
    owner = exact.argmin(1)
    yield Value(np.float64(found.obj[-1]), exact.min(1).sum(), 1e-3)
    yield Value(found.index.search(points, 1)[1][:, 0], owner)


if __name__ == "__main__":
    cases.main(globals())
