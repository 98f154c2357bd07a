"""Copies 64 MiB to the host again and again; prints its pid, and `right` or `wrong` at the end of its input."""

import os
import select
import sys

import numpy as np
from cu import download, start, upload

start()
sent = np.random.default_rng(1).integers(0, 1 << 32, 1 << 24, np.uint32)
on_device = upload(sent)
print(os.getpid(), flush=True)
right = True
while not select.select([sys.stdin], [], [], 0)[0]:
    right = right and np.array_equal(download(on_device, sent.size), sent)
print("right" if right else "wrong")
