"""cuTENSOR's contractions, permutations and reductions by ctypes, against NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p

import cases
import numpy as np
from cases import Value
from runtime import ONE, ZERO, allocate, check, fetch, free, put, synchronize
from wheels import find

cutensor = ctypes.CDLL(find("libcutensor"))
FLOATS, ALIGNMENT = c_int(0), c_uint32(128)
IDENTITY, ADD, MAXIMUM = c_int(1), c_int(3), c_int(6)
FLOAT_ARITHMETIC = c_void_p.in_dll(cutensor, "CUTENSOR_COMPUTE_DESC_32F")
rng = np.random.default_rng(55)


def call(name: str, *arguments: object) -> None:
    check(getattr(cutensor, name)(*arguments), name)


class Tensor:
    """An array on the GPU, with its description and a letter for each mode."""

    def __init__(self, handle: c_void_p, array: np.ndarray, letters: str) -> None:
        self.shape, self.description, rank = array.shape, c_void_p(), array.ndim
        self.memory, self.modes = allocate(array.size), (c_int32 * rank)(*map(ord, letters))
        put(self.memory, array)
        strides = (c_int64 * rank)(*(step // array.itemsize for step in array.strides))
        extents = (c_int64 * rank)(*self.shape)
        made = (byref(self.description), c_uint32(rank), extents, strides, FLOATS, ALIGNMENT)
        call("cutensorCreateTensorDescriptor", handle, *made)


def planned(handle: c_void_p, operation: c_void_p) -> tuple[c_void_p, c_uint64]:
    """A plan and the size of its workspace: without one there is no plan where modes come in different orders."""
    preference, plan, size = c_void_p(), c_void_p(), c_uint64()
    call("cutensorCreatePlanPreference", handle, byref(preference), c_int(-1), c_int(0))
    call("cutensorEstimateWorkspaceSize", handle, operation, preference, c_int(2), byref(size))
    call("cutensorCreatePlan", handle, byref(plan), operation, preference, size)
    return plan, size


def computed(kind: str, pattern: str, *arrays: np.ndarray, by: c_int = ADD) -> np.ndarray:
    """Runs a Contraction, Permutation or Reduction of cuTENSOR on arrays, with a pattern as numpy.einsum writes it."""
    inputs, output = pattern.split("->")
    handle, operation = c_void_p(), c_void_p()
    call("cutensorCreate", byref(handle))
    tensors = [Tensor(handle, array, letters) for array, letters in zip(arrays, inputs.split(","), strict=True)]
    out = Tensor(handle, np.zeros(np.einsum(pattern, *arrays).shape, np.float32), output)
    described = [each for tensor in tensors for each in (tensor.description, tensor.modes, IDENTITY)]
    if kind == "Permutation":
        described += [out.description, out.modes]
    else:
        described += [out.description, out.modes, IDENTITY, out.description, out.modes]
        described += [by] if kind == "Reduction" else []
    call(f"cutensorCreate{kind}", handle, byref(operation), *described, FLOAT_ARITHMETIC)
    plan, size = planned(handle, operation)
    workspace = allocate(size.value // 4 + 1)
    memory = [tensor.memory for tensor in tensors]
    if kind == "Permutation":
        call("cutensorPermute", handle, plan, byref(ONE), *memory, out.memory, None)
    else:
        function = {"Contraction": "cutensorContract", "Reduction": "cutensorReduce"}[kind]
        both = (out.memory, out.memory, workspace, size, None)
        call(function, handle, plan, byref(ONE), *memory, byref(ZERO), *both)
    synchronize(c_void_p(0))
    got = fetch(out.memory, out.shape)
    free(workspace, out.memory, *memory)
    return got


def numbers(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def contractions() -> Iterator[Value]:
    shapes = {
        "ik,kj->ij": ((20, 30), (30, 16)),
        "ki,kj->ji": ((30, 20), (30, 16)),
        "abk,kcb->ac": ((8, 6, 20), (20, 10, 6)),
        "abk,kc->acb": ((8, 6, 20), (20, 10)),
        "nik,nkj->nij": ((4, 20, 30), (4, 30, 16)),
    }
    for pattern, (left, right) in shapes.items():
        a, b = numbers(*left), numbers(*right)
        yield Value(computed("Contraction", pattern, a, b), np.einsum(pattern, a.astype(np.float64), b), 1e-5)


def permutations() -> Iterator[Value]:
    for pattern, shape in (("ij->ji", (70, 33)), ("abc->cab", (9, 20, 17)), ("abcd->dbca", (5, 6, 7, 8))):
        a = numbers(*shape)
        yield Value(computed("Permutation", pattern, a), np.einsum(pattern, a))


def reductions() -> Iterator[Value]:
    for pattern, shape in (("ij->i", (40, 300)), ("abc->b", (12, 30, 25)), ("abcd->db", (5, 6, 7, 8))):
        a = numbers(*shape)
        yield Value(computed("Reduction", pattern, a), np.einsum(pattern, a.astype(np.float64)), 1e-5)
        modes, kept = pattern.split("->")
        most = a.max(tuple(index for index, letter in enumerate(modes) if letter not in kept))
        order = "".join(letter for letter in modes if letter in kept)
        yield Value(computed("Reduction", pattern, a, by=MAXIMUM), np.einsum(f"{order}->{kept}", most))


if __name__ == "__main__":
    cases.main(globals())
