"""One process, two GPUs in two machines: each computes the dot product of half of two vectors."""

import numpy as np
from numba import cuda


@cuda.jit
def multiply(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * b[i]


rng = np.random.default_rng(3)
a, b = rng.integers(0, 100, (2, 1 << 20))
halves = np.split(a, len(cuda.gpus)), np.split(b, len(cuda.gpus))
products = []
for number, (x, y) in enumerate(zip(*halves, strict=True)):
    with cuda.gpus[number]:
        out = cuda.device_array_like(x)
        multiply[x.size // 256, 256](cuda.to_device(x), cuda.to_device(y), out)
        products.append((number, out))
total = 0
for number, out in products:
    with cuda.gpus[number]:
        total += int(out.copy_to_host().sum())
assert total == int(a @ b)
print(f"{len(products)} GPUs, dot product {total}, right")
