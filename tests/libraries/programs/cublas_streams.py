"""One handle of cuBLAS on several streams, against NumPy. cuBLAS is given no workspace, so that it chooses which of its
own a product gets: it must see by the stream's number that two products may run at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from ctypes import byref, c_size_t, c_void_p

import cases
import numpy as np
from cases import Value
from runtime import (
    LEGACY,
    ONE,
    PER_THREAD,
    ROUNDS,
    THREAD_LOCAL,
    ZERO,
    allocate,
    attach,
    check,
    event,
    fetch,
    free,
    put,
    put_later,
    runtime,
    stream,
    synchronize,
)  # fmt: skip
from wheels import library

library("libcublasLt")
cublas = library("libcublas")
# Rows, columns, depth. cuBLAS splits the depth of each among blocks, which add up in a workspace.
SHAPES = ((8, 1024, 16), (16, 16, 2048), (64, 8, 512))
WITHIN = 2e-5
FLOATS, TRANSPOSED, PLAIN = 0, 1, 0
rng = np.random.default_rng(34)


class Handle:
    def __init__(self) -> None:
        self.value = c_void_p()
        check(cublas.cublasCreate_v2(byref(self.value)), "cublasCreate")

    def product(self, queue: c_void_p, a: c_void_p, b: c_void_p, c: c_void_p, shape: tuple[int, int, int]) -> None:
        """c = b a^T in row-major order, on the stream."""
        m, n, k = shape
        check(cublas.cublasSetStream_v2(self.value, queue), "cublasSetStream")
        status = cublas.cublasSgemmEx(
            self.value, TRANSPOSED, PLAIN, m, n, k, byref(ONE), a, FLOATS, k, b, FLOATS, k, byref(ZERO), c, FLOATS, m
        )
        check(status, "cublasSgemmEx")

    def close(self) -> None:
        check(cublas.cublasDestroy_v2(self.value), "cublasDestroy")


class Work:
    """The operands and the result of a product."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape = m, n, k = shape
        self.a, self.b, self.c = allocate(m * k), allocate(n * k), allocate(m * n)
        self.draw()

    def draw(self) -> None:
        m, n, k = self.shape
        self.left = rng.standard_normal((m, k), np.float32)
        self.right = rng.standard_normal((n, k), np.float32)
        put(self.a, self.left)
        put(self.b, self.right)

    def multiply(self, handle: Handle, queue: c_void_p) -> None:
        handle.product(queue, self.a, self.b, self.c, self.shape)

    def value(self) -> Value:
        m, n, _ = self.shape
        return Value(fetch(self.c, (n, m)), self.right.astype(np.float64) @ self.left.astype(np.float64).T, WITHIN)


def in_turn(queues: list[c_void_p], rounds: int = ROUNDS) -> Iterator[Value]:
    """Each round gives every stream a product by the same handle, and only then waits."""
    handle = Handle()
    works = [[Work(shape) for _ in queues] for shape in SHAPES]
    for number in range(rounds):
        turn = works[number % len(SHAPES)]
        for work in turn:
            work.draw()
        for work, queue in zip(turn, queues, strict=True):
            work.multiply(handle, queue)
        for queue in queues:
            synchronize(queue)
        yield from (work.value() for work in turn)
    handle.close()


def two_streams() -> Iterator[Value]:
    yield from in_turn([stream(), stream()])


def eight_streams() -> Iterator[Value]:
    yield from in_turn([stream() for _ in range(8)])


def null_and_named_streams() -> Iterator[Value]:
    """The default streams by null and by name, a stream that waits for them, and two that do not."""
    yield from in_turn([c_void_p(0), stream(), PER_THREAD, stream(flags=0), LEGACY, stream()])


def streams_come_and_go() -> Iterator[Value]:
    """A stream of each round is new: its number must not be that of one whose work is still known."""
    handle, kept = Handle(), stream()
    works = [Work(SHAPES[0]) for _ in range(3)]
    for _ in range(ROUNDS):
        queues = [stream(), kept, stream()]
        for work in works:
            work.draw()
        for work, queue in zip(works, queues, strict=True):
            work.multiply(handle, queue)
        # Destroyed before its work is done: the work continues.
        runtime("cudaStreamDestroy", queues[0])
        runtime("cudaDeviceSynchronize")
        runtime("cudaStreamDestroy", queues[2])
        yield from (work.value() for work in works)
    handle.close()


def threads() -> Iterator[Value]:
    """Four threads have the handle by turns, each with a stream of its own and with its per-thread default stream."""
    handle, lock, count = Handle(), threading.Lock(), 4
    works = [(Work(SHAPES[0]), Work(SHAPES[1])) for _ in range(count)]
    queues = [stream() for _ in range(count)]
    problems: list[Exception] = []

    def body(index: int) -> None:
        try:
            attach()
            with lock:
                works[index][0].multiply(handle, queues[index])
            with lock:
                works[index][1].multiply(handle, PER_THREAD)
            synchronize(queues[index])
            synchronize(PER_THREAD)
        except Exception as problem:
            problems.append(problem)

    for _ in range(ROUNDS):
        for pair in works:
            for work in pair:
                work.draw()
        running = [threading.Thread(target=body, args=(index,)) for index in range(count)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if problems:
            raise problems[0]
        yield from (work.value() for pair in works for work in pair)
    handle.close()


def captured() -> Iterator[Value]:
    """Products on two streams in one capture, launched once for each round's operands."""
    handle, main, side = Handle(), stream(), stream()
    works = [Work(SHAPES[0]), Work(SHAPES[0])]
    for work, queue in zip(works, (main, side), strict=True):
        work.multiply(handle, queue)
        synchronize(queue)
    fork, join, graph, executable = event(), event(), c_void_p(), c_void_p()
    runtime("cudaStreamBeginCapture", main, THREAD_LOCAL)
    runtime("cudaEventRecord", fork, main)
    runtime("cudaStreamWaitEvent", side, fork, 0)
    works[0].multiply(handle, main)
    works[1].multiply(handle, side)
    runtime("cudaEventRecord", join, side)
    runtime("cudaStreamWaitEvent", main, join, 0)
    runtime("cudaStreamEndCapture", main, byref(graph))
    runtime("cudaGraphInstantiateWithFlags", byref(executable), graph, c_size_t(0))
    for _ in range(ROUNDS):
        for work in works:
            work.draw()
        runtime("cudaGraphLaunch", executable, main)
        synchronize(main)
        yield from (work.value() for work in works)
    runtime("cudaGraphExecDestroy", executable)
    runtime("cudaGraphDestroy", graph)
    handle.close()


def pools() -> Iterator[Value]:
    """Operands and results come from the pool of each stream, and go back before anybody waits."""
    handle, queues = Handle(), [stream() for _ in range(3)]
    m, n, k = SHAPES[0]
    results = [allocate(m * n) for _ in queues]
    for _ in range(ROUNDS):
        lefts = [rng.standard_normal((m, k), np.float32) for _ in queues]
        rights = [rng.standard_normal((n, k), np.float32) for _ in queues]
        for queue, left, right, result in zip(queues, lefts, rights, results, strict=True):
            a, b = c_void_p(), c_void_p()
            for pointer, array in ((a, left), (b, right)):
                runtime("cudaMallocAsync", byref(pointer), c_size_t(array.nbytes), queue)
                put_later(pointer, array, queue)
            handle.product(queue, a, b, result, SHAPES[0])
            runtime("cudaFreeAsync", a, queue)
            runtime("cudaFreeAsync", b, queue)
        for queue in queues:
            synchronize(queue)
        for left, right, result in zip(lefts, rights, results, strict=True):
            yield Value(fetch(result, (n, m)), right.astype(np.float64) @ left.astype(np.float64).T, WITHIN)
    free(*results)
    handle.close()


def vectors() -> Iterator[Value]:
    """A matrix by a vector, and dot products that leave their result in device memory, on two streams."""
    handle, queues, rows, columns = Handle(), [stream(), stream()], 96, 512
    matrices = [allocate(rows * columns) for _ in queues]
    inputs, outputs, sums = (
        [allocate(columns) for _ in queues],
        [allocate(rows) for _ in queues],
        [allocate(1), allocate(1)],
    )
    check(cublas.cublasSetPointerMode_v2(handle.value, 1), "cublasSetPointerMode")
    one, zero = allocate(1), allocate(1)
    put(one, np.ones(1, np.float32))
    put(zero, np.zeros(1, np.float32))
    for _ in range(ROUNDS):
        hosts = [
            (rng.standard_normal((rows, columns), np.float32), rng.standard_normal(columns, np.float32)) for _ in queues
        ]
        for matrix, vector, (m, v) in zip(matrices, inputs, hosts, strict=True):
            put(matrix, m)
            put(vector, v)
        for queue, matrix, vector, output, total in zip(queues, matrices, inputs, outputs, sums, strict=True):
            check(cublas.cublasSetStream_v2(handle.value, queue), "cublasSetStream")
            status = cublas.cublasSgemv_v2(
                handle.value, TRANSPOSED, columns, rows, one, matrix, columns, vector, 1, zero, output, 1
            )
            check(status, "cublasSgemv")
            check(cublas.cublasSdot_v2(handle.value, columns, vector, 1, vector, 1, total), "cublasSdot")
        for queue in queues:
            synchronize(queue)
        for output, total, (m, v) in zip(outputs, sums, hosts, strict=True):
            m, v = m.astype(np.float64), v.astype(np.float64)
            yield Value(fetch(output, (rows,)), m @ v, WITHIN)
            yield Value(fetch(total, (1,)), np.array([v @ v]), WITHIN)
    handle.close()


if __name__ == "__main__":
    cases.main(globals())
