"""Fills memory of the device and waits for that, beside so many page-locked buffers that kernels may use; the second
argument says how often."""

import sys

from cu import cu, ok, pinned, start

start()
buffers = [pinned(1024) for _ in range(int(sys.argv[1]))]
for array in buffers:
    ok(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0))
memory = ok(cu.cuMemAlloc(64))
stream = ok(cu.cuStreamCreate(1))
for _ in range(int(sys.argv[2])):
    ok(cu.cuMemsetD32Async(memory, 7, 16, stream))
    ok(cu.cuStreamSynchronize(stream))
