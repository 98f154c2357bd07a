"""cuTENSOR's contractions and permutations by ctypes, against NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p

import cases
import numpy as np
from cases import Value
from runtime import ONE, ZERO, allocate, check, fetch, put, synchronize
from wheels import find

cutensor = ctypes.CDLL(find("libcutensor"))
FLOATS, IDENTITY, ALIGNMENT = c_int(0), c_int(1), c_uint32(128)
rng = np.random.default_rng(55)


def described(handle: c_void_p, array: np.ndarray) -> c_void_p:
    made, rank = c_void_p(), array.ndim
    extents = (c_int64 * rank)(*array.shape)
    strides = (c_int64 * rank)(*(step // array.itemsize for step in array.strides))
    status = cutensor.cutensorCreateTensorDescriptor(
        handle, byref(made), c_uint32(rank), extents, strides, FLOATS, ALIGNMENT
    )
    check(status, "cutensorCreateTensorDescriptor")
    return made


def contract(pattern: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    inputs, output = pattern.split("->")
    modes = [(c_int32 * len(part))(*map(ord, part)) for part in (*inputs.split(","), output)]
    want = np.einsum(pattern, a.astype(np.float64), b.astype(np.float64))
    c, handle, operation, preference, plan = np.zeros(want.shape, np.float32), *(c_void_p() for _ in range(4))
    check(cutensor.cutensorCreate(byref(handle)), "cutensorCreate")
    of_a, of_b, of_c = (described(handle, each) for each in (a, b, c))
    compute = c_void_p.in_dll(cutensor, "CUTENSOR_COMPUTE_DESC_32F")
    status = cutensor.cutensorCreateContraction(
        handle, byref(operation), of_a, modes[0], IDENTITY, of_b, modes[1], IDENTITY, of_c, modes[2], IDENTITY, of_c,
        modes[2], compute,
    )  # fmt: skip
    check(status, "cutensorCreateContraction")
    status = cutensor.cutensorCreatePlanPreference(handle, byref(preference), c_int(-1), c_int(0))
    check(status, "cutensorCreatePlanPreference")
    check(cutensor.cutensorCreatePlan(handle, byref(plan), operation, preference, c_uint64(0)), "cutensorCreatePlan")
    buffers = [allocate(each.size) for each in (a, b, c)]
    for buffer, array in zip(buffers, (a, b, c), strict=True):
        put(buffer, array)
    status = cutensor.cutensorContract(
        handle, plan, byref(ONE), buffers[0], buffers[1], byref(ZERO), buffers[2], buffers[2], None, c_uint64(0), None
    )
    check(status, "cutensorContract")
    synchronize(c_void_p(0))
    return fetch(buffers[2], c.shape)


def contractions() -> Iterator[Value]:
    for pattern, left, right in (("ik,kj->ij", (20, 30), (30, 16)), ("abk,kcb->ac", (8, 6, 20), (20, 10, 6))):
        a, b = rng.standard_normal(left, np.float32), rng.standard_normal(right, np.float32)
        yield Value(contract(pattern, a, b), np.einsum(pattern, a.astype(np.float64), b), 1e-5)


if __name__ == "__main__":
    cases.main(globals())
