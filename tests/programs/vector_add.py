"""Ten lines of PTX through cuda.bindings, against NumPy."""

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u32, u64, upload

start()
n = 100_003
rng = np.random.default_rng(1)
a, b = rng.random(n, np.float32), rng.random(n, np.float32)
d_a, d_b, d_c = upload(a), upload(b), ok(cu.cuMemAlloc(n * 4))
launch(kernels()["add"], (n + 255) // 256, 256, [u64(int(d_a)), u64(int(d_b)), u64(int(d_c)), u32(n)])
assert np.array_equal(download(d_c, n, np.float32), a + b)
print("ok")
