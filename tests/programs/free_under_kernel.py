"""Launch, free, allocate: memory freed under a 200 ms kernel must not be another's before the kernel ends."""

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u32, u64, upload

start()
functions = kernels()
n = 1 << 18
for size in (n, n // 64):  # whole slabs, and pieces of one slab
    first = ok(cu.cuMemAlloc(size * 4))
    stream = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
    launch(functions["late_fill"], 1, 256, [u64(int(first)), u32(size), u32(7), u64(200_000_000)], stream)
    ok(cu.cuMemFree(first))
    mine = np.full(size, 3, np.uint32)
    second = upload(mine)
    ok(cu.cuCtxSynchronize())
    assert np.array_equal(download(second, size), mine)
print("ok")
