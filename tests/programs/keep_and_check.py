"""Fills memory (MiB in the first argument), prints "ready"; for each line on standard input changes it, compares it
with what NumPy makes of it, and prints "ok". The numbers by which libraries tell objects apart stay what they were."""

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


def numbers_of_objects():
    buffer_id = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID
    streams = [ok(cu.cuStreamGetId(cu.CUstream(name))) for name in (0, 1, 2)]
    buffers = [int(ok(cu.cuPointerGetAttribute(buffer_id, each))) for each in (memory, steps)]
    return [*streams, ok(cu.cuCtxGetId(None)), *buffers]


told = numbers_of_objects()
print("ready", flush=True)
for _ in sys.stdin:
    launch(add, (count + 255) // 256, 256, [u64(int(memory)), u64(int(steps)), u64(int(memory)), u32(count)])
    numbers += step
    assert np.array_equal(download(memory, count, np.float32), numbers)
    assert numbers_of_objects() == told
    print("ok", flush=True)
