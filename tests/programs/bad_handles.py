"""NULL, freed and random handles: the driver's own codes, and the process lives and still computes."""

import ctypes
import os
import random
import sys

driver = ctypes.CDLL("libcuda.so.1")
ptr, u64 = ctypes.c_void_p, ctypes.c_uint64


def call(name, *arguments):
    return getattr(driver, name)(*arguments)


def made(name, *arguments):
    out = ptr()
    assert call(name, ctypes.byref(out), *arguments) == 0, name
    return out


assert call("cuInit", 0) == 0
context = made("cuDevicePrimaryCtxRetain", 0)
assert call("cuCtxSetCurrent", context) == 0

stream, event = made("cuStreamCreate", 1), made("cuEventCreate", 0)
assert call("cuStreamDestroy_v2", stream) == 0 and call("cuEventDestroy_v2", event) == 0
out, number, small = ptr(), ctypes.c_int(), u64()
by = ctypes.byref
INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE = 1, 201, 400

for bad in (stream, ptr(0xDEADBEEF000), ptr(random.getrandbits(63))):
    assert call("cuStreamSynchronize", bad) == INVALID_HANDLE or call("cuStreamSynchronize", bad) == INVALID_CONTEXT
    assert call("cuStreamQuery", bad) in (INVALID_HANDLE, INVALID_CONTEXT)
    assert call("cuStreamDestroy_v2", bad) in (INVALID_HANDLE, INVALID_CONTEXT)
for bad in (ptr(0), event, ptr(0xDEADBEEF000), ptr(random.getrandbits(63))):
    for name in ("cuEventSynchronize", "cuEventQuery", "cuEventDestroy_v2"):
        assert call(name, bad) in (INVALID_HANDLE, INVALID_CONTEXT), (name, bad)
    assert call("cuEventRecord", bad, ptr(0)) in (INVALID_HANDLE, INVALID_CONTEXT)
    assert call("cuModuleUnload", bad) in (INVALID_HANDLE, INVALID_CONTEXT)
    assert call("cuModuleGetFunction", by(out), bad, b"k") in (INVALID_HANDLE, INVALID_CONTEXT, INVALID_VALUE)
    launched = call("cuLaunchKernel", bad, 1, 1, 1, 1, 1, 1, 0, ptr(0), ptr(0), ptr(0))
    assert launched in (INVALID_HANDLE, INVALID_VALUE), launched
    assert call("cuCtxSetCurrent", bad) == (0 if not bad else INVALID_CONTEXT) and call("cuCtxSetCurrent", context) == 0
for pointer in (1, 0xDEAD0000, random.getrandbits(47), (1 << 64) - 1):
    assert call("cuMemFree_v2", u64(pointer)) == INVALID_VALUE, hex(pointer)
    assert call("cuMemcpyDtoH_v2", (ctypes.c_char * 4)(), u64(pointer), u64(4)) == INVALID_VALUE
    assert call("cuMemcpyHtoD_v2", u64(pointer), b"1234", u64(4)) == INVALID_VALUE
assert call("cuMemFree_v2", u64(0)) == 0
for name in (
    "cuDeviceGetCount",
    "cuMemAlloc_v2",
    "cuStreamCreate",
    "cuEventCreate",
    "cuCtxGetCurrent",
    "cuDriverGetVersion",
):
    assert call(name, ptr(0), 0, 0) == INVALID_VALUE, name
assert call("cuDeviceGet", by(number), 99) == 101 and call("cuDeviceGet", by(number), -1) == 101

# NULL and 0 as every argument of every function there is: only that the process lives is asserted.
for name in os.environ.get("BAD_HANDLE_NAMES", "").split():
    if not name.startswith(("cuDevicePrimaryCtx", "cuInit")):
        call(name, *[u64(0)] * 12)

assert call("cuCtxSetCurrent", context) == 0
assert call("cuMemAlloc_v2", by(small), u64(4096)) == 0 and call("cuCtxSynchronize") == 0
print("ok")
sys.stdout.flush()
