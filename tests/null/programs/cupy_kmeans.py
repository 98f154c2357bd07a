"""K-means in CuPy, with a kernel of its own, a product, a sort and random numbers: `cupy_kmeans.py [STEPS]`."""

import sys

import cupy as cp

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10
points = cp.random.default_rng(0).standard_normal((4096, 16), dtype=cp.float32)
centres = points[:8].copy()
scale = cp.RawKernel(
    'extern "C" __global__ void scale(float *x, float by, int n) {'
    " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= by; }",
    "scale",
)
for _ in range(steps):
    scale((centres.size // 128 + 1,), (128,), (centres, cp.float32(1), cp.int32(centres.size)))
    distances = (points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)
    nearest = distances.argmin(1)
    mask = (nearest[:, None] == cp.arange(8)).astype(cp.float32)
    centres = mask.T @ points / cp.maximum(mask.sum(0), 1)[:, None]
cp.sort(distances[:, 0])
cp.cuda.Device().synchronize()
print(f"{steps} steps")
