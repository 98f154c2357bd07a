"""Numba on two devices: each computes, and arrays pass from one to the other."""

import warnings

import numpy as np
from numba import cuda

warnings.filterwarnings("ignore")
COUNT = 10_000


@cuda.jit
def scale(values, factor):
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= factor


assert len(cuda.gpus) == 2
numbers = np.arange(COUNT, dtype=np.float32)
with cuda.gpus[0]:
    first = cuda.to_device(numbers)
    scale[40, 256](first, 2)
    cuda.synchronize()
with cuda.gpus[1]:
    second = cuda.device_array_like(numbers)
    second.copy_to_device(first)
    scale[40, 256](second, 3)
    shared = cuda.mapped_array(COUNT, np.float32)
    shared[:] = numbers
    scale[40, 256](shared, 5)
    cuda.synchronize()
    assert (shared == 5 * numbers).all()
with cuda.gpus[0]:
    first.copy_to_device(second)
    scale[40, 256](first, 7)
    assert (first.copy_to_host() == 42 * numbers).all()
with cuda.gpus[1]:
    assert (second.copy_to_host() == 6 * numbers).all()
print("ok")
