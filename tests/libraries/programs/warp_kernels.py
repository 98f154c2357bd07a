"""Warp: kernels, gradients, sparse matrices, queries of meshes, graphs; the same code on its CPU device, and NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import numpy as np
import warp as wp
import warp.sparse
from cases import Value

wp.config.quiet = True
wp.init()
rng = np.random.default_rng(43)


@wp.kernel
def springs(x: wp.array(dtype=wp.vec3), rest: float, energy: wp.array(dtype=float)):
    i = wp.tid()
    length = wp.length(x[i] - x[i + 1])
    wp.atomic_add(energy, 0, 0.5 * (length - rest) * (length - rest))


@wp.kernel
def closest(mesh: wp.uint64, points: wp.array(dtype=wp.vec3), distance: wp.array(dtype=float)):
    i = wp.tid()
    query = wp.mesh_query_point_no_sign(mesh, points[i], 1.0e6)
    distance[i] = wp.length(points[i] - wp.mesh_eval_position(mesh, query.face, query.u, query.v))


@wp.kernel
def scale(x: wp.array(dtype=float), factor: float):
    i = wp.tid()
    x[i] = x[i] * factor + 1.0


def gradients() -> Iterator[Value]:
    points = rng.standard_normal((200, 3)).astype(np.float32)
    x = wp.array(points, dtype=wp.vec3, device="cuda", requires_grad=True)
    energy = wp.zeros(1, dtype=float, device="cuda", requires_grad=True)
    with wp.Tape() as tape:
        wp.launch(springs, 199, inputs=[x, 0.5, energy], device="cuda")
    tape.backward(energy)
    edge = points[:-1].astype(np.float64) - points[1:]
    length = np.linalg.norm(edge, axis=1, keepdims=True)
    pull = (length - 0.5) * edge / length
    want = np.zeros((200, 3))
    want[:-1] += pull
    want[1:] -= pull
    # Atomics add in any order, so that the sum's last bits may differ; the gradients have none.
    yield Value(x.grad.numpy(), want, 1e-5)


def sparse_products() -> Iterator[Value]:
    dense = np.where(rng.random((48, 48)) < 0.1, rng.standard_normal((48, 48)), 0).astype(np.float32)
    rows, columns = np.nonzero(dense)
    made = warp.sparse.bsr_from_triplets(
        48, 48, wp.array(rows, dtype=int, device="cuda"), wp.array(columns, dtype=int, device="cuda"),
        wp.array(dense[rows, columns], dtype=float, device="cuda"),
    )  # fmt: skip
    vector = rng.standard_normal(48).astype(np.float32)
    by_vector = warp.sparse.bsr_mv(made, wp.array(vector, dtype=float, device="cuda"))
    yield Value(by_vector.numpy(), dense.astype(np.float64) @ vector, 1e-5)
    square = warp.sparse.bsr_mm(made, made)
    count = square.nnz_sync()
    got, offsets = np.zeros((48, 48), np.float32), square.offsets.numpy()
    for row in range(48):
        for entry in range(offsets[row], min(offsets[row + 1], count)):
            got[row, square.columns.numpy()[entry]] += square.values.numpy()[entry]
    yield Value(got, dense.astype(np.float64) @ dense, 1e-5)


def mesh_queries() -> Iterator[Value]:
    corners = rng.standard_normal((60, 3)).astype(np.float32)
    faces = rng.integers(0, 60, (80, 3))
    faces = faces[(faces[:, 0] != faces[:, 1]) & (faces[:, 1] != faces[:, 2]) & (faces[:, 0] != faces[:, 2])]
    points, found = rng.standard_normal((300, 3)).astype(np.float32), {}
    for device in ("cuda", "cpu"):
        mesh = wp.Mesh(
            wp.array(corners, dtype=wp.vec3, device=device), wp.array(faces.flatten(), dtype=wp.int32, device=device)
        )
        distance = wp.zeros(300, dtype=float, device=device)
        wp.launch(
            closest, 300, inputs=[mesh.id, wp.array(points, dtype=wp.vec3, device=device), distance], device=device
        )
        found[device] = distance.numpy()
    yield Value(found["cuda"], found["cpu"], 1e-5)


def graphs_and_sorts() -> Iterator[Value]:
    start = rng.standard_normal(1000).astype(np.float32)
    x = wp.array(start, dtype=float, device="cuda")
    wp.load_module(device="cuda")
    with wp.ScopedCapture(device="cuda") as capture:
        for _ in range(5):
            wp.launch(scale, 1000, inputs=[x, 0.5], device="cuda")
    for _ in range(3):
        wp.capture_launch(capture.graph)
    want = start.astype(np.float64)
    for _ in range(15):
        want = want * 0.5 + 1
    yield Value(x.numpy(), want, 1e-6)
    keys = wp.array(np.concatenate([rng.permutation(500), np.zeros(500)]).astype(np.int32), dtype=int, device="cuda")
    values = wp.array(np.arange(1000, dtype=np.int32), dtype=int, device="cuda")
    before = keys.numpy()[:500]
    wp.utils.radix_sort_pairs(keys, values, 500)
    yield Value(keys.numpy()[:500], np.sort(before))
    yield Value(values.numpy()[:500], np.argsort(before))
    total = wp.utils.array_sum(x)
    yield Value(np.float64(total), want.sum(), 1e-5)


if __name__ == "__main__":
    cases.main(globals())
