"""Launches with more page-locked memory than mirrors may have (the first argument, in MiB, is too much): prints what
becomes of them."""

import sys

import numpy as np
from cu import CudaError, cu, download, kernels, launch, ok, pinned, start, u32, u64

start()
functions = kernels()
large = pinned(int(sys.argv[1]) << 18)
small = pinned(256)
out = ok(cu.cuMemAlloc(1024))


def add(a):
    """The code of a launch that reads 256 words of `a`, and what came of it."""
    ok(cu.cuMemsetD8(out, 0, 1024))
    try:
        launch(functions["add"], 1, 256, [u64(a.ctypes.data), u64(a.ctypes.data), u64(int(out)), u32(256)])
    except CudaError as error:
        return error.code, bool(download(out, 256).any())
    ok(cu.cuCtxSynchronize())
    return 0, bool((download(out, 256, np.float32) == 2 * a[:256].view(np.float32)).all())


large[:], small[:] = 0x3F800000, 0x40000000
print("small", *add(small))
print("large", *add(large))
print("large", *add(large))
# The context is as good as before, and so is the memory: for copies, and for what has a mirror already.
ok(cu.cuMemcpyHtoD(out, large.ctypes.data, 1024))
print("copied", bool((download(out, 256) == large[:256]).all()))
small[:] = 0x40400000
print("small", *add(small))
ok(cu.cuMemFreeHost(small.ctypes.data))
ok(cu.cuMemFreeHost(large.ctypes.data))
