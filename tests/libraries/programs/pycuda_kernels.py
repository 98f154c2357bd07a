"""PyCUDA against NumPy: kernels from source, arrays, reductions and scans, streams with page-locked memory."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import numpy as np
import pycuda.autoinit  # noqa: F401
import pycuda.driver as cuda
from cases import Value
from pycuda import cumath, gpuarray
from pycuda.compiler import SourceModule
from pycuda.elementwise import ElementwiseKernel
from pycuda.reduction import ReductionKernel
from pycuda.scan import InclusiveScanKernel

rng = np.random.default_rng(57)


def kernels() -> Iterator[Value]:
    """A product of matrices by shared memory, launched as CUDA did before version 4 and as it does now."""
    module = SourceModule(
        """
        __global__ void product(const float *a, const float *b, float *c, int n) {
            __shared__ float left[8][8], right[8][8];
            int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 8 + y, column = blockIdx.x * 8 + x;
            float sum = 0;
            for (int tile = 0; tile < n; tile += 8) {
                left[y][x] = a[row * n + tile + x];
                right[y][x] = b[(tile + y) * n + column];
                __syncthreads();
                for (int k = 0; k < 8; k++) sum += left[y][k] * right[k][x];
                __syncthreads();
            }
            c[row * n + column] = sum;
        }
        """
    )
    a, b = (rng.standard_normal((64, 64), np.float32) for _ in range(2))
    want, function, size = a.astype(np.float64) @ b, module.get_function("product"), np.int32(64)
    got = np.empty_like(a)
    function(cuda.In(a), cuda.In(b), cuda.Out(got), size, block=(8, 8, 1), grid=(8, 8))
    yield Value(got, want, 1e-5)
    prepared = np.empty_like(a)
    left, right, out = cuda.to_device(a), cuda.to_device(b), cuda.mem_alloc(a.nbytes)
    function.prepare("PPPi").prepared_call((8, 8), (8, 8, 1), left, right, out, size)
    cuda.memcpy_dtoh(prepared, out)
    yield Value(prepared, got)


def arrays() -> Iterator[Value]:
    x, y = (rng.standard_normal(5000) for _ in range(2))
    on_x, on_y = gpuarray.to_gpu(x), gpuarray.to_gpu(y)
    yield Value((2 * on_x + on_y**2 - on_x / (on_y**2 + 1)).get(), 2 * x + y**2 - x / (y**2 + 1), 1e-14)
    yield Value(cumath.exp(cumath.sin(on_x)).get(), np.exp(np.sin(x)), 1e-14)
    yield Value(gpuarray.if_positive(on_x, on_y, -on_y).get(), np.where(x > 0, y, -y))
    triple = ElementwiseKernel("double *x, double *y, double *z", "z[i] = x[i] > 0 ? 3 * y[i] : x[i]", "triple")
    made = gpuarray.empty_like(on_x)
    triple(on_x, on_y, made)
    yield Value(made.get(), np.where(x > 0, 3 * y, x))


def reductions_and_scans() -> Iterator[Value]:
    x, y = (rng.integers(-50, 50, 3000).astype(np.int32) for _ in range(2))
    on_x, on_y = gpuarray.to_gpu(x), gpuarray.to_gpu(y)
    dot = ReductionKernel(np.int32, "0", "a+b", "x[i]*y[i]", "int *x, int *y")
    yield Value(dot(on_x, on_y).get(), (x * y).sum())
    yield Value(gpuarray.max(on_x).get(), x.max())
    InclusiveScanKernel(np.int32, "a+b")(on_y)
    yield Value(on_y.get(), np.cumsum(y, dtype=np.int32))


def streams() -> Iterator[Value]:
    function = SourceModule("__global__ void add(float *x, float by) { x[blockIdx.x * 128 + threadIdx.x] += by; }")
    add = function.get_function("add")
    parts = rng.standard_normal((4, 1024), np.float32)
    held = cuda.pagelocked_empty(parts.shape, np.float32)
    held[:] = parts
    made, event = [(cuda.Stream(), cuda.mem_alloc(parts[0].nbytes)) for _ in parts], cuda.Event()
    for index, (stream, memory) in enumerate(made):
        cuda.memcpy_htod_async(memory, held[index], stream)
        add(memory, np.float32(index), block=(128, 1, 1), grid=(8, 1), stream=stream)
        cuda.memcpy_dtoh_async(held[index], memory, stream)
    event.record(made[-1][0])
    event.synchronize()
    for stream, _ in made:
        stream.synchronize()
    yield Value(held.copy(), parts + np.arange(4, dtype=np.float32)[:, None])


if __name__ == "__main__":
    cases.main(globals())
