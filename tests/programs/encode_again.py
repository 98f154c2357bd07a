"""Encodes the same tensor map, and moves it there and back, as often as it is told to.

By ctypes: a tensor map of cuda.bindings is not aligned as CUDA asks (NVIDIA/cuda-python, pull request 1692).
"""

import ctypes
import sys

from cu import cu, ok, start

start()
driver = ctypes.CDLL("libcuda.so.1")
memory = int(ok(cu.cuMemAlloc(1 << 20)))
room = ctypes.create_string_buffer(128 + 64)
tensor_map = ctypes.addressof(room) + -ctypes.addressof(room) % 64
sizes, strides = (ctypes.c_uint64 * 2)(64, 64), (ctypes.c_uint64 * 1)(256)
boxes, steps = (ctypes.c_uint32 * 2)(16, 8), (ctypes.c_uint32 * 2)(1, 1)
FLOAT32 = 7


def encode(address: int) -> bytes:
    at = ctypes.c_void_p(tensor_map)
    code = driver.cuTensorMapEncodeTiled(
        at, FLOAT32, 2, ctypes.c_void_p(address), sizes, strides, boxes, steps, 0, 0, 0, 0
    )
    assert code == 0, code
    return ctypes.string_at(tensor_map, 128)


elsewhere = encode(memory + 4096)
for _ in range(int(sys.argv[1])):
    assert encode(memory) != elsewhere
    assert driver.cuTensorMapReplaceAddress(ctypes.c_void_p(tensor_map), ctypes.c_void_p(memory + 4096)) == 0
    assert ctypes.string_at(tensor_map, 128) == elsewhere
