"""One handle of cuBLASLt on several streams, with a workspace for each stream or with none, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref, c_size_t, c_void_p

import cases
import numpy as np
from cases import Value
from runtime import ONE, ROUNDS, ZERO, allocate, check, fetch, put, stream, synchronize
from wheels import library

lt = library("libcublasLt")
FLOATS, COMPUTE_32F, TRANSPOSE_OF_A, TRANSPOSED = 0, 68, 3, 1
WORKSPACE = 1 << 20
SHAPES = ((8, 1024, 16), (16, 16, 2048))
WITHIN = 2e-5
rng = np.random.default_rng(35)


def layout(rows: int, columns: int) -> c_void_p:
    made = c_void_p()
    status = lt.cublasLtMatrixLayoutCreate(byref(made), FLOATS, c_size_t(rows), c_size_t(columns), c_size_t(rows))
    check(status, "cublasLtMatrixLayoutCreate")
    return made


def in_turn(queues: list[c_void_p], workspace: int) -> Iterator[Value]:
    handle, operation, transposed = c_void_p(), c_void_p(), np.array([TRANSPOSED], np.int32)
    check(lt.cublasLtCreate(byref(handle)), "cublasLtCreate")
    check(lt.cublasLtMatmulDescCreate(byref(operation), COMPUTE_32F, FLOATS), "cublasLtMatmulDescCreate")
    status = lt.cublasLtMatmulDescSetAttribute(
        operation, TRANSPOSE_OF_A, transposed.ctypes.data_as(c_void_p), c_size_t(4)
    )
    check(status, "cublasLtMatmulDescSetAttribute")
    spaces = [allocate(max(workspace, 4) // 4) for _ in queues]
    buffers = [[[allocate(size) for size in (m * k, n * k, m * n)] for _ in queues] for m, n, k in SHAPES]
    layouts = [(layout(k, m), layout(k, n), layout(m, n)) for m, n, k in SHAPES]
    for number in range(ROUNDS):
        which = number % len(SHAPES)
        m, n, k = SHAPES[which]
        of_a, of_b, of_c = layouts[which]
        hosts = [(rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32)) for _ in queues]
        for (a, b, _), (left, right) in zip(buffers[which], hosts, strict=True):
            put(a, left)
            put(b, right)
        for queue, space, (a, b, c) in zip(queues, spaces, buffers[which], strict=True):
            status = lt.cublasLtMatmul(
                handle, operation, byref(ONE), a, of_a, b, of_b, byref(ZERO), c, of_c, c, of_c, None,
                space if workspace else None, c_size_t(workspace), queue,
            )  # fmt: skip
            check(status, "cublasLtMatmul")
        for queue in queues:
            synchronize(queue)
        for (_, _, c), (left, right) in zip(buffers[which], hosts, strict=True):
            yield Value(fetch(c, (n, m)), right.astype(np.float64) @ left.astype(np.float64).T, WITHIN)
    check(lt.cublasLtDestroy(handle), "cublasLtDestroy")


def with_workspaces() -> Iterator[Value]:
    yield from in_turn([stream() for _ in range(4)], WORKSPACE)


def without_workspace() -> Iterator[Value]:
    yield from in_turn([stream(), c_void_p(0), stream()], 0)


if __name__ == "__main__":
    cases.main(globals())
