"""A kernel spins on stream A; 2,000 launches and the copy that releases it go to B. Must not deadlock."""

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u64, upload

start()
functions = kernels()
flag, out, counter = (upload(np.zeros(1, np.uint32)) for _ in range(3))
a, b = (ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(2))
launch(functions["spin"], 1, 1, [u64(int(flag)), u64(int(out))], a)
for _ in range(2000):
    launch(functions["increment"], 1, 1, [u64(int(counter))], b)
release = np.array([42], np.uint32)
ok(cu.cuMemcpyHtoDAsync(flag, release, 4, b))
ok(cu.cuStreamSynchronize(a))
ok(cu.cuStreamSynchronize(b))
assert download(out, 1)[0] == 42
assert download(counter, 1)[0] == 2000
print("ok")
