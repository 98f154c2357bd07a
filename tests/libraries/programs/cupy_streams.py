"""CuPy on several streams and in several threads, each thread and device with one handle of cuBLAS, against NumPy."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import cases
import cupy as cp
import numpy as np
from cases import Value
from runtime import ROUNDS

SINGLE, DOUBLE = 2e-5, 1e-12
rng = np.random.default_rng(37)


def products() -> Iterator[Value]:
    """Matrix by vector and matrix by matrix, which cuBLAS computes in a workspace, on four streams."""
    queues = [cp.cuda.Stream(non_blocking=True) for _ in range(4)]
    for _ in range(ROUNDS):
        matrices = [rng.standard_normal((48, 600)) for _ in queues]
        vectors = [rng.standard_normal(600) for _ in queues]
        on_gpu = [(cp.asarray(m), cp.asarray(v)) for m, v in zip(matrices, vectors, strict=True)]
        cp.cuda.get_current_stream().synchronize()
        found = []
        for queue, (m, v) in zip(queues, on_gpu, strict=True):
            with queue:
                found.append((m @ v, m @ m.T))
        for queue in queues:
            queue.synchronize()
        for (by_vector, by_matrix), m, v in zip(found, matrices, vectors, strict=True):
            yield Value(by_vector.get(), m @ v, DOUBLE)
            yield Value(by_matrix.get(), m @ m.T, DOUBLE)


def transforms_sorts_and_sums() -> Iterator[Value]:
    queues = [cp.cuda.Stream(non_blocking=True), cp.cuda.Stream.null, cp.cuda.Stream(), cp.cuda.Stream(ptds=True)]
    for _ in range(ROUNDS):
        hosts = [rng.standard_normal((4, 256)) for _ in queues]
        found = []
        for queue, host in zip(queues, hosts, strict=True):
            with queue:
                one = cp.asarray(host)
                found.append((cp.fft.fft(one), cp.sort(one, axis=1), one.sum(axis=1), cp.cumsum(one, axis=1)))
        cp.cuda.Device().synchronize()
        for (spectrum, ordered, total, running), host in zip(found, hosts, strict=True):
            yield Value(spectrum.get(), np.fft.fft(host), DOUBLE)
            yield Value(ordered.get(), np.sort(host, axis=1))
            yield Value(total.get(), host.sum(axis=1), DOUBLE)
            yield Value(running.get(), np.cumsum(host, axis=1), DOUBLE)


def threads() -> Iterator[Value]:
    """Four threads, each with a stream of its own and a handle of CuPy's own."""
    count = 4
    left, right = rng.standard_normal((count, 32, 700)), rng.standard_normal((count, 700, 24))
    results: dict[int, list[np.ndarray]] = {}

    def body(index: int) -> None:
        with cp.cuda.Device(0), cp.cuda.Stream(non_blocking=True) as queue:
            a, b, kept = cp.asarray(left[index]), cp.asarray(right[index]), []
            for number in range(ROUNDS // 4):
                kept.append(((a + number) @ b).get())
            queue.synchronize()
            results[index] = kept

    running = [threading.Thread(target=body, args=(index,)) for index in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for index in range(count):
        for number, got in enumerate(results[index]):
            yield Value(got, (left[index] + number) @ right[index], DOUBLE)


def memory_of_a_pool() -> Iterator[Value]:
    """The asynchronous pool gives a stream's memory to the next allocation before that stream is done."""
    pool = cp.cuda.MemoryAsyncPool()
    before = cp.cuda.get_allocator()
    cp.cuda.set_allocator(pool.malloc)
    try:
        queues = [cp.cuda.Stream(non_blocking=True) for _ in range(3)]
        for _ in range(ROUNDS):
            hosts = [rng.standard_normal((24, 400), np.float32) for _ in queues]
            found = []
            for queue, host in zip(queues, hosts, strict=True):
                with queue:
                    one = cp.asarray(host)
                    found.append((one * 2 + 1) @ one.T)
            for queue in queues:
                queue.synchronize()
            for got, host in zip(found, hosts, strict=True):
                wide = host.astype(np.float64)
                yield Value(got.get(), (wide * 2 + 1) @ wide.T, SINGLE)
    finally:
        cp.cuda.set_allocator(before)


if __name__ == "__main__":
    cases.main(globals())
