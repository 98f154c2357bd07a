"""k-means with CuPy: the sum of squared distances of each step."""
# needs: cupy, numpy

import json
import time

import cupy as cp
import numpy as np

rng = np.random.default_rng(3)
points = cp.asarray(rng.normal(size=(4000, 8)).astype("f"))
centres = points[:16].copy()


def step(centres):
    distances = ((points[:, None, :] - centres[None]) ** 2).sum(axis=2)
    nearest = distances.argmin(axis=1)
    chosen = (nearest[None] == cp.arange(16)[:, None]).astype("f")
    moved = (chosen[:, :, None] * points[None]).sum(axis=1) / cp.maximum(chosen.sum(axis=1), 1)[:, None]
    return moved, distances.min(axis=1).sum()


step(centres)
cp.cuda.Stream.null.synchronize()
begin, losses = time.monotonic(), []
for _ in range(10):
    centres, loss = step(centres)
    losses.append(float(loss).hex())
print(json.dumps({"losses": losses, "seconds": time.monotonic() - begin}))
