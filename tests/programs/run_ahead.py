"""On a line of input, 20,000 launches that nothing waits for; says when all are given, and then what they counted."""

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u64, upload

start()
function, counter = kernels()["increment"], upload(np.zeros(1, np.uint32))
ok(cu.cuCtxSynchronize())
print("ready", flush=True)
input()
for _ in range(20_000):
    launch(function, 1, 1, [u64(int(counter))])
print("given", flush=True)
ok(cu.cuCtxSynchronize())
print(download(counter, 1)[0], flush=True)
