"""Calls CUDA forever; prints `ready` after the first round trip, and at the first error its code and the seconds."""

import sys
import time

import numpy as np
from cu import CudaError, cu, kernels, launch, ok, start, u64, upload

start()
function, counter = kernels()["increment"], upload(np.zeros(1, np.uint32))
ok(cu.cuCtxSynchronize())
print("ready", flush=True)
begun = time.monotonic()
limit = float(sys.argv[1]) if len(sys.argv) > 1 else 60
try:
    while time.monotonic() - begun < limit:
        launch(function, 1, 1, [u64(int(counter))])
        ok(cu.cuCtxSynchronize())
        time.sleep(0.01)
    print("finished", flush=True)
except CudaError as error:
    later = [int(cu.cuCtxSynchronize()[0]), int(cu.cuMemGetInfo()[0])]
    print(f"error {error.code} {later[0]} {later[1]}", flush=True)
