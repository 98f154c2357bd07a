"""Adds one to each of a million numbers on the GPU, step after step, and checks them at the end.

steps.py [STEPS]     a step takes a second
"""

import sys
import time

import numpy as np
from numba import cuda


@cuda.jit
def add_one(values):
    i = cuda.grid(1)
    if i < values.size:
        values[i] += 1


steps = int(sys.argv[1])
values = cuda.to_device(np.zeros(1 << 20, np.float32))
print("started", flush=True)
for _ in range(steps):
    add_one[values.size // 256, 256](values)
    cuda.synchronize()
    time.sleep(1)
assert (values.copy_to_host() == steps).all()
print(f"{steps} steps, result right", flush=True)
