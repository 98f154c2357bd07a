"""Fills memory of the device and waits for that, while there are so many page-locked buffers that kernels may use. The
second argument is the number of times, the third that of `__managed__` variables in modules of their own (0).
"""

import sys

import numpy as np
from cu import cu, ok, pinned, start
from mirrors.memories import Variable

start()
variables = [Variable(np.random.default_rng(), 0) for _ in range(int((*sys.argv, 0)[3]))]
buffers = [pinned(1024) for _ in range(int(sys.argv[1]))]
for array in buffers:
    ok(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0))
memory = ok(cu.cuMemAlloc(64))
stream = ok(cu.cuStreamCreate(1))
for _ in range(int(sys.argv[2])):
    ok(cu.cuMemsetD32Async(memory, 7, 16, stream))
    ok(cu.cuStreamSynchronize(stream))
