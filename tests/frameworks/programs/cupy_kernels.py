"""Kernels that a program brings to CuPy as source."""

from __future__ import annotations

import cases
import cupy as cp
import numpy as np

rng = np.random.default_rng(7)


def raw_kernel():
    saxpy = cp.RawKernel(
        r"""
        extern "C" __global__ void saxpy(float a, const float* x, const float* y, float* out, int n) {
            int i = blockDim.x * blockIdx.x + threadIdx.x;
            if (i < n) out[i] = a * x[i] + y[i];
        }
        """,
        "saxpy",
    )
    x, y = rng.random((2, 5001), np.float32)
    out = cp.zeros(5001, np.float32)
    saxpy((40,), (128,), (np.float32(2), cp.asarray(x), cp.asarray(y), out, np.int32(5001)))
    np.testing.assert_allclose(out.get(), 2 * x + y, rtol=1e-6)
    assert saxpy.attributes["max_threads_per_block"] >= 128 and saxpy.num_regs > 0

    reverse = cp.RawKernel(
        r"""
        extern "C" __global__ void reverse(const int* in, int* out) {
            extern __shared__ int tile[];
            tile[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
            __syncthreads();
            out[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
        }
        """,
        "reverse",
    )
    numbers = cp.arange(64 * 5, dtype=cp.int32)
    reversed_ = cp.empty_like(numbers)
    reverse((5,), (64,), (numbers, reversed_), shared_mem=64 * 4)
    assert np.array_equal(reversed_.get(), np.arange(320).reshape(5, 64)[:, ::-1].ravel())
    return [out, reversed_]


def raw_module_with_globals_and_templates():
    module = cp.RawModule(
        code=r"""
        __constant__ float coefficients[4];
        __device__ int calls;

        template <typename T> __global__ void polynomial(const T* x, T* out, int n) {
            int i = blockDim.x * blockIdx.x + threadIdx.x;
            if (i >= n) return;
            T value = 0;
            for (int k = 3; k >= 0; --k) value = value * x[i] + T(coefficients[k]);
            out[i] = value;
            atomicAdd(&calls, 1);
        }
        extern "C" __global__ void twice(int* x) { x[threadIdx.x] *= 2; }
        """,
        options=("--std=c++17",),
        name_expressions=("polynomial<float>", "polynomial<double>"),
    )
    table = cp.ndarray(4, np.float32, module.get_global("coefficients"))
    table[...] = cp.asarray([1, -2, 0.5, 3], np.float32)
    calls = cp.ndarray(1, np.int32, module.get_global("calls"))
    assert calls.get()[0] == 0
    results = []
    for name, dtype in (("polynomial<float>", np.float32), ("polynomial<double>", np.float64)):
        x = rng.random(700).astype(dtype)
        out = cp.empty(700, dtype)
        module.get_function(name)((6,), (128,), (cp.asarray(x), out, np.int32(700)))
        np.testing.assert_allclose(out.get(), np.polyval([3, 0.5, -2, 1], x.astype(np.float64)), rtol=1e-5)
        results.append(out)
    assert calls.get()[0] == 1400
    numbers = cp.arange(32, dtype=cp.int32)
    module.get_function("twice")((1,), (32,), (numbers,))
    assert np.array_equal(numbers.get(), np.arange(32) * 2)
    return [*results, numbers]


def elementwise_and_reduction_kernels():
    difference = cp.ElementwiseKernel("T x, T y, float64 scale", "T z", "z = (x - y) * (x - y) * scale", "difference")
    x, y = rng.random((2, 3, 100))
    z = difference(cp.asarray(x), cp.asarray(y[:1]), 0.5)
    np.testing.assert_allclose(z.get(), (x - y[:1]) ** 2 * 0.5, rtol=1e-12)

    neighbours = cp.ElementwiseKernel("raw T x, int32 n", "T z", "z = x[(i + 1) % n] - x[i]", "neighbours")
    a = rng.integers(0, 99, 200)
    got = neighbours(cp.asarray(a), 200, size=200)
    assert np.array_equal(got.get(), np.roll(a, -1) - a)

    norm = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "euclidean_norm")
    np.testing.assert_allclose(norm(cp.asarray(x), axis=1).get(), np.linalg.norm(x, axis=1), rtol=1e-12)
    return [z, got, norm(cp.asarray(x)), norm(cp.asarray(x), axis=0)]


def functions_written_in_python():
    @cp.fuse(kernel_name="gelu")
    def gelu(x):
        return x * 0.5 * (1 + cp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    @cp.fuse
    def squares(x, y):
        return cp.sum((x - y) ** 2)

    a, b = rng.normal(size=(2, 500))
    got = gelu(cp.asarray(a))
    np.testing.assert_allclose(got.get(), a * 0.5 * (1 + np.tanh(0.7978845608 * (a + 0.044715 * a**3))), rtol=1e-12)
    total = squares(cp.asarray(a), cp.asarray(b))
    np.testing.assert_allclose(float(total), ((a - b) ** 2).sum(), rtol=1e-12)

    @cp.vectorize
    def clamp(x, low, high):
        return low if x < low else high if x > high else x

    clamped = clamp(cp.asarray(a), -0.5, 0.5)
    assert np.array_equal(clamped.get(), np.clip(a, -0.5, 0.5))
    return [got, total, clamped]


def faults_are_reported():
    """Compiler and launch errors arrive as CuPy's exceptions; the process continues."""
    try:
        cp.RawKernel('extern "C" __global__ void f() { nonsense; }', "f").compile()
    except cp.cuda.compiler.CompileException as error:
        assert "nonsense" in str(error)
    else:
        raise AssertionError("compiled")
    nothing = cp.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
    try:
        nothing((1,), (2048,), ())
    except cp.cuda.driver.CUDADriverError as error:
        assert "INVALID_VALUE" in str(error)
    else:
        raise AssertionError("launched")
    nothing((1,), (32,), ())
    cp.cuda.get_current_stream().synchronize()


def cudas_headers():
    """CuPy looks for CUDA's folder where NVRTC is, which may be remotegpu's, and for its headers in its wheels."""
    to_half = cp.RawKernel(
        r"""
        #include <cuda_fp16.h>
        extern "C" __global__ void to_half(const float* in, __half* out) {
            out[threadIdx.x] = __float2half(in[threadIdx.x]);
        }
        """,
        "to_half",
    )
    numbers = rng.random(64, np.float32)
    out = cp.empty(64, np.float16)
    to_half((1,), (64,), (cp.asarray(numbers), out))
    np.testing.assert_array_equal(out.get(), numbers.astype(np.float16))


if __name__ == "__main__":
    cases.main(globals())
