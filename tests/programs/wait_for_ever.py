"""Waits for a kernel that never ends; prints `ready` before, and the code of the error that ends the wait."""

import numpy as np
from cu import CudaError, cu, kernels, launch, ok, start, u64, upload

start()
flag, out = (upload(np.zeros(1, np.uint32)) for _ in range(2))
launch(kernels()["spin"], 1, 1, [u64(int(flag)), u64(int(out))])
print("ready", flush=True)
try:
    ok(cu.cuCtxSynchronize())
    print("finished", flush=True)
except CudaError as error:
    print(f"error {error.code}", flush=True)
