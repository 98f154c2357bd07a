"""Fills memory (MiB in the first argument), prints "ready"; for each line on standard input changes it, compares it
with what NumPy makes of it, and prints "ok"."""

import sys

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u32, u64, upload

start()
add = kernels()["add"]
count = (int(sys.argv[1]) << 20) // 8
numbers = np.random.default_rng(7).random(count, dtype=np.float32)
step = np.random.default_rng(8).random(count, dtype=np.float32)
memory, steps = upload(numbers), upload(step)
ok(cu.cuCtxSynchronize())
print("ready", flush=True)
for _ in sys.stdin:
    launch(add, (count + 255) // 256, 256, [u64(int(memory)), u64(int(steps)), u64(int(memory)), u32(count)])
    numbers += step
    assert np.array_equal(download(memory, count, np.float32), numbers)
    print("ok", flush=True)
