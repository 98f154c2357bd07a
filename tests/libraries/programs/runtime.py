"""The parts of CUDA's runtime that the programs for cuBLAS and cuFFT use, by ctypes, from the wheels of this venv."""

from __future__ import annotations

import os
from ctypes import byref, c_float, c_int, c_size_t, c_void_p

import numpy as np
from wheels import library

ROUNDS = int(os.environ.get("LIBRARIES_ROUNDS", "200"))
NON_BLOCKING = 1
TO_DEVICE, TO_HOST = 1, 2
THREAD_LOCAL = 1
# The default streams by their handles.
LEGACY, PER_THREAD = c_void_p(1), c_void_p(2)
ONE, ZERO = c_float(1), c_float(0)


cudart = library("libcudart")


def check(status: int, call: str) -> None:
    if status:
        raise RuntimeError(f"{call} answered {status}")


def runtime(call: str, *arguments: object) -> None:
    check(getattr(cudart, call)(*arguments), call)


def stream(flags: int = NON_BLOCKING) -> c_void_p:
    made = c_void_p()
    runtime("cudaStreamCreateWithFlags", byref(made), flags)
    return made


def event() -> c_void_p:
    made = c_void_p()
    runtime("cudaEventCreateWithFlags", byref(made), 2)
    return made


def synchronize(queue: c_void_p) -> None:
    runtime("cudaStreamSynchronize", queue)


def allocate(count: int, kind: type = np.float32) -> c_void_p:
    made = c_void_p()
    runtime("cudaMalloc", byref(made), c_size_t(count * np.dtype(kind).itemsize))
    return made


def free(*pointers: c_void_p) -> None:
    for pointer in pointers:
        runtime("cudaFree", pointer)


def put(pointer: c_void_p, array: np.ndarray) -> None:
    runtime("cudaMemcpy", pointer, array.ctypes.data_as(c_void_p), c_size_t(array.nbytes), TO_DEVICE)


def put_later(pointer: c_void_p, array: np.ndarray, queue: c_void_p) -> None:
    size = c_size_t(array.nbytes)
    runtime("cudaMemcpyAsync", pointer, array.ctypes.data_as(c_void_p), size, TO_DEVICE, queue)


def fetch(pointer: c_void_p, shape: tuple[int, ...], kind: type = np.float32) -> np.ndarray:
    array = np.empty(shape, kind)
    runtime("cudaMemcpy", array.ctypes.data_as(c_void_p), pointer, c_size_t(array.nbytes), TO_HOST)
    return array


def attach(device: int = 0) -> None:
    """Makes the device current in the calling thread."""
    runtime("cudaSetDevice", c_int(device))
