"""cuda.core: the Pythonic CUDA."""

from __future__ import annotations

import cases
import numpy as np
from cuda.core import (
    Device,
    DeviceMemoryResource,
    EventOptions,
    LaunchConfig,
    Linker,
    LinkerOptions,
    Program,
    ProgramOptions,
    launch,
)  # fmt: skip

SAXPY = r"""
template <typename T> __global__ void saxpy(T a, const T* x, const T* y, T* out, size_t n) {
    const size_t i = threadIdx.x + size_t(blockIdx.x) * blockDim.x;
    if (i < n) out[i] = a * x[i] + y[i];
}
"""


def _device():
    it = Device()
    it.set_current()
    return it


def _to_host(stream, buffer, dtype, count):
    from cuda.bindings import driver

    out = np.empty(count, dtype)
    (code,) = driver.cuMemcpyDtoHAsync(out.ctypes.data, buffer.handle, out.nbytes, stream.handle)
    assert code == 0, code
    stream.sync()
    return out


def _from_host(stream, array):
    from cuda.bindings import driver

    buffer = Device().memory_resource.allocate(array.nbytes, stream=stream)
    (code,) = driver.cuMemcpyHtoDAsync(buffer.handle, array.ctypes.data, array.nbytes, stream.handle)
    assert code == 0, code
    return buffer


def device_properties():
    it = Device()
    it.set_current()
    properties = it.properties
    assert properties.warp_size == 32 and properties.max_threads_per_block == 1024
    assert it.compute_capability.major >= 7 and it.name and len(it.uuid) == 36
    assert properties.managed_memory
    return [np.int32(properties.multiprocessor_count)]


def ptx_is_compiled_and_launched():
    it = _device()
    stream = it.create_stream()
    options = ProgramOptions(std="c++17", arch=f"sm_{it.arch}")
    code = Program(SAXPY, code_type="c++", options=options).compile(
        "ptx", name_expressions=("saxpy<float>", "saxpy<double>")
    )
    rng = np.random.default_rng(7)
    results = []
    for dtype, name in ((np.float32, "saxpy<float>"), (np.float64, "saxpy<double>")):
        x, y = rng.random((2, 3000)).astype(dtype)
        left, right = _from_host(stream, x), _from_host(stream, y)
        out = it.memory_resource.allocate(x.nbytes, stream=stream)
        kernel = code.get_kernel(name)
        assert kernel.attributes.max_threads_per_block >= 128
        config = LaunchConfig(grid=24, block=128)
        launch(stream, config, kernel, dtype(3), left, right, out, np.uint64(3000))
        got = _to_host(stream, out, dtype, 3000)
        np.testing.assert_allclose(got, 3 * x + y, rtol=1e-6)
        results.append(got)
    return results


def separate_programs_are_linked():
    it = _device()
    stream = it.create_stream()
    options = ProgramOptions(arch=f"sm_{it.arch}", relocatable_device_code=True)
    sources = (
        "extern __device__ int next(int);"
        'extern "C" __global__ void fill(int* a) { a[threadIdx.x] = next(a[threadIdx.x]); }',
        "__device__ int next(int x) { return 2 * x + 1; }",
    )
    parts = [Program(source, code_type="c++", options=options).compile("ptx") for source in sources]
    linked = Linker(*parts, options=LinkerOptions(arch=f"sm_{it.arch}")).link("cubin")
    numbers = np.arange(64, dtype=np.int32)
    buffer = _from_host(stream, numbers)
    launch(stream, LaunchConfig(grid=1, block=64), linked.get_kernel("fill"), buffer)
    got = _to_host(stream, buffer, np.int32, 64)
    assert np.array_equal(got, 2 * numbers + 1)
    return [got]


def machine_code_of_nvrtc_runs():
    """A program that asks NVRTC for machine code gets PTX where the GPU executes only that."""
    it = _device()
    stream = it.create_stream()
    source = 'extern "C" __global__ void fill(int* a) { a[threadIdx.x] = 3 * a[threadIdx.x] + 1; }'
    code = Program(source, code_type="c++", options=ProgramOptions(arch=f"sm_{it.arch}")).compile("cubin")
    numbers = np.arange(64, dtype=np.int32)
    buffer = _from_host(stream, numbers)
    launch(stream, LaunchConfig(grid=1, block=64), code.get_kernel("fill"), buffer)
    got = _to_host(stream, buffer, np.int32, 64)
    assert np.array_equal(got, 3 * numbers + 1)
    return [got]


def buffers_and_pools():
    it = _device()
    stream = it.create_stream()
    pool = DeviceMemoryResource(it)
    first, second = pool.allocate(4096, stream=stream), pool.allocate(4096, stream=stream)
    assert first.size == 4096 and first.is_device_accessible and not first.is_host_accessible
    first.fill(7, stream=stream)
    first.copy_to(second, stream=stream)
    got = _to_host(stream, second, np.uint8, 4096)
    assert (got == 7).all()
    assert pool.attributes.used_mem_current >= 8192
    first.close(stream)
    second.close(stream)
    stream.sync()
    return [got]


def events_order_streams():
    it = _device()
    one, two = it.create_stream(), it.create_stream()
    begin = one.record(options=EventOptions(timing_enabled=True))
    buffer = it.memory_resource.allocate(1 << 20, stream=one)
    buffer.fill(1, stream=one)
    end = one.record(options=EventOptions(timing_enabled=True))
    two.wait(end)
    buffer.fill(2, stream=two)
    got = _to_host(two, buffer, np.uint8, 1 << 20)
    assert (got == 2).all() and end.is_done
    assert end - begin >= 0
    return [got]


if __name__ == "__main__":
    cases.main(globals())
