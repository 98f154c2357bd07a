"""Plans of cuFFT on several streams, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref, c_int, c_void_p

import cases
import numpy as np
from cases import Value
from runtime import ROUNDS, allocate, check, event, fetch, put, runtime, stream, synchronize
from wheels import library

cufft = library("libcufft")
COMPLEX, FORWARD, BATCH = 0x29, c_int(-1), 2
# A power of two, a product of small primes, and a prime, which takes a work area and several kernels.
LENGTHS = (1024, 1000, 1009)
WITHIN = 2e-6
rng = np.random.default_rng(36)


def plan(length: int) -> c_int:
    made = c_int()
    check(cufft.cufftPlan1d(byref(made), length, COMPLEX, BATCH), "cufftPlan1d")
    return made


def draw(length: int) -> np.ndarray:
    return (rng.standard_normal((BATCH, length)) + 1j * rng.standard_normal((BATCH, length))).astype(np.complex64)


def transform(which: c_int, queue: c_void_p, signal: c_void_p, spectrum: c_void_p) -> None:
    check(cufft.cufftSetStream(which, queue), "cufftSetStream")
    check(cufft.cufftExecC2C(which, signal, spectrum, FORWARD), "cufftExecC2C")


def a_plan_for_each_stream() -> Iterator[Value]:
    queues = [stream(), stream(), c_void_p(0), stream()]
    plans = [[plan(length) for _ in queues] for length in LENGTHS]
    signals, spectra = ([allocate(BATCH * max(LENGTHS), np.complex64) for _ in queues] for _ in range(2))
    for number in range(ROUNDS):
        which = number % len(LENGTHS)
        hosts = [draw(LENGTHS[which]) for _ in queues]
        for signal, host in zip(signals, hosts, strict=True):
            put(signal, host)
        for each, queue, signal, spectrum in zip(plans[which], queues, signals, spectra, strict=True):
            transform(each, queue, signal, spectrum)
        for queue in queues:
            synchronize(queue)
        for spectrum, host in zip(spectra, hosts, strict=True):
            yield Value(fetch(spectrum, host.shape, np.complex64), np.fft.fft(host.astype(np.complex128)), WITHIN)


def one_plan_that_changes_its_stream() -> Iterator[Value]:
    """A plan has one work area, so each stream waits for the one before it."""
    queues, done = [stream() for _ in range(3)], event()
    one = plan(LENGTHS[2])
    signals, spectra = ([allocate(BATCH * LENGTHS[2], np.complex64) for _ in queues] for _ in range(2))
    for _ in range(ROUNDS):
        hosts = [draw(LENGTHS[2]) for _ in queues]
        for signal, host in zip(signals, hosts, strict=True):
            put(signal, host)
        for queue, signal, spectrum in zip(queues, signals, spectra, strict=True):
            transform(one, queue, signal, spectrum)
            runtime("cudaEventRecord", done, queue)
            for other in queues:
                runtime("cudaStreamWaitEvent", other, done, 0)
        for queue in queues:
            synchronize(queue)
        for spectrum, host in zip(spectra, hosts, strict=True):
            yield Value(fetch(spectrum, host.shape, np.complex64), np.fft.fft(host.astype(np.complex128)), WITHIN)


if __name__ == "__main__":
    cases.main(globals())
