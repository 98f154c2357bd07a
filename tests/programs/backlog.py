"""Launches kernels forever, as fast as they are taken; prints `ready` after the first round trip."""

import numpy as np
from cu import cu, kernels, launch, ok, start, u64, upload

start()
function, counter = kernels()["increment"], upload(np.zeros(1, np.uint32))
ok(cu.cuCtxSynchronize())
print("ready", flush=True)
while True:
    launch(function, 1, 1, [u64(int(counter))])
