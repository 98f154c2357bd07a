"""Adds on the GPU, prints `ready`, waits for a line of input, adds again, and prints `ok`."""

import numpy as np
from cu import download, kernels, launch, start, u64, upload

start()
kernel = kernels()["increment"]
counter = upload(np.zeros(1, np.uint32))
launch(kernel, 1, 1, [u64(int(counter))])
assert download(counter, 1)[0] == 1
print("ready", flush=True)
input()
launch(kernel, 1, 1, [u64(int(counter))])
assert download(counter, 1)[0] == 2
print("ok")
