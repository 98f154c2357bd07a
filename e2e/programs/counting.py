"""Adds numbers on the GPU as often as its argument says; prints "checked N" after each tenth time, and at the end
the digest of the sums and "right". Sums are compared with NumPy's."""

import hashlib
import sys
import time

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u32, u64, upload

COUNT = 1 << 20

start()
add = kernels()["add"]
steps = np.random.default_rng(1).random(COUNT, dtype=np.float32)
sums = np.zeros(COUNT, np.float32)
on_gpu, step_on_gpu = upload(sums), upload(steps)
for number in range(1, int(sys.argv[1]) + 1):
    launch(add, COUNT // 256, 256, [u64(int(on_gpu)), u64(int(step_on_gpu)), u64(int(on_gpu)), u32(COUNT)])
    sums += steps
    if number % 10 == 0:
        assert np.array_equal(download(on_gpu, COUNT, np.float32), sums)
        print("checked", number, flush=True)
    time.sleep(0.05)
ok(cu.cuCtxSynchronize())
print("digest", hashlib.sha256(download(on_gpu, COUNT, np.float32).tobytes()).hexdigest(), flush=True)
print("right", flush=True)
