"""Adds on the GPU until SIGTERM, then continues for some seconds like a server that drains; compares with NumPy.

The last line of output gives the number of correct steps after SIGTERM.
"""

import signal
import sys
import time

import numpy as np
from cu import download, kernels, launch, start, u32, u64, upload

COUNT, ended = 1 << 16, []
signal.signal(signal.SIGTERM, lambda *_: ended.append(time.monotonic()))
start()
add = kernels()["add"]
steps = np.random.default_rng(1).random(COUNT, dtype=np.float32)
sums = np.zeros(COUNT, np.float32)
on_gpu, step_on_gpu = upload(sums), upload(steps)
print("serving", flush=True)
number = while_draining = 0
while not ended or time.monotonic() < ended[0] + float(sys.argv[1]):
    launch(add, COUNT // 256, 256, [u64(int(on_gpu)), u64(int(step_on_gpu)), u64(int(on_gpu)), u32(COUNT)])
    sums += steps
    assert np.array_equal(download(on_gpu, COUNT, np.float32), sums), number
    number += 1
    while_draining += bool(ended)
    if while_draining == 1:
        print("draining", flush=True)
    time.sleep(0.1)
print("drained, right after", while_draining, "steps", flush=True)
# The reader of the log needs a moment before the pod is gone.
time.sleep(3)
