"""`long_kernel.py SECONDS`: a kernel that runs for so long, and a wait for it; prints `ok`."""

import sys
import time

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u32, u64, upload

seconds = int(sys.argv[1])
start()
target = upload(np.zeros(16, np.uint32))
begun = time.monotonic()
launch(kernels()["late_fill"], 1, 16, [u64(int(target)), u32(16), u32(7), u64(seconds * 10**9)])
ok(cu.cuCtxSynchronize())
assert time.monotonic() - begun >= seconds
assert (download(target, 16) == 7).all()
print("ok")
