"""5,000 launches queued behind a spinning kernel on one stream; the release comes from another stream."""

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u64, upload

start()
functions = kernels()
flag, out, counter = (upload(np.zeros(1, np.uint32)) for _ in range(3))
a, b = (ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(2))
launch(functions["spin"], 1, 1, [u64(int(flag)), u64(int(out))], a)
for _ in range(900):
    launch(functions["increment"], 1, 1, [u64(int(counter))], a)
ok(cu.cuMemcpyHtoDAsync(flag, np.array([1], np.uint32), 4, b))
for _ in range(4100):
    launch(functions["increment"], 1, 1, [u64(int(counter))], a)
ok(cu.cuStreamSynchronize(a))
assert download(counter, 1)[0] == 5000
print("ok")
