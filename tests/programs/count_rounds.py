"""Counts launches on the device and copies random bytes about, round after round, and compares; `round N` after each.

At the end of its input it prints `ok`, the rounds and what the device has counted; `error CODE` at the first error of
CUDA; `wrong` and why if anything was lost, doubled or changed.
"""

import select
import sys

import numpy as np
from cu import CudaError, cu, download, kernels, launch, ok, start, u64, upload

LAUNCHES, BYTES = 20, 1 << 16


def rounds(seed):
    chance = np.random.default_rng(seed)
    start()
    function, counter = kernels()["increment"], upload(np.zeros(1, np.uint32))
    there = ok(cu.cuMemAlloc(BYTES))
    number = 0
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        number += 1
        sent = chance.integers(0, 256, BYTES, np.uint8)
        ok(cu.cuMemcpyHtoD(there, sent, BYTES))
        for _ in range(LAUNCHES):
            launch(function, 1, 1, [u64(int(counter))])
        counted = int(download(counter, 1)[0])
        if counted != number * LAUNCHES:
            return f"wrong: {counted} launches after {number} rounds"
        if not np.array_equal(download(there, BYTES, np.uint8), sent):
            return f"wrong: other bytes in round {number}"
        print("round", number, flush=True)
    return f"ok {number} {int(download(counter, 1)[0])}"


try:
    print(rounds(int(sys.argv[1])), flush=True)
except CudaError as error:
    print("error", error.code, flush=True)
