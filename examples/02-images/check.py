"""Load CUDA under each of its names, and copy a megabyte to the GPU and back. Needs nothing but Python."""

import ctypes
import os

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: error {code}"


device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
name, memory = ctypes.create_string_buffer(100), ctypes.c_size_t()
call("cuInit", 0)
assert ctypes.CDLL("libcuda.so").cuInit(0) == 0, "libcuda.so is another one"
assert ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2() == 0, "libnvidia-ml.so.1 is another one"
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDeviceGetName", name, 100, device)
call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)

size = 1 << 20
sent, received = os.urandom(size), ctypes.create_string_buffer(size)
call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
call("cuMemcpyHtoD_v2", pointer, sent, ctypes.c_size_t(size))
call("cuMemcpyDtoH_v2", received, pointer, ctypes.c_size_t(size))
assert received.raw == sent

with open("/proc/self/maps") as maps:
    loaded = sorted({line.split()[-1] for line in maps if "libcuda" in line or "libnvidia-ml" in line})
print(f"{name.value.decode()}, {memory.value >> 20} MiB, through {', '.join(loaded)}")
