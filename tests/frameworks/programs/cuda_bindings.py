"""cuda.bindings: the driver, the runtime and NVRTC by their C names."""

from __future__ import annotations

import ctypes

import cases
import numpy as np
from cuda.bindings import driver, nvrtc, runtime

MIB = 1 << 20
SCALE = rb"""
__constant__ float offset;
extern "C" __global__ void scale(float* a, float factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] = a[i] * factor + offset;
}
"""


def _ok(result):
    """Returns a call's values without its code, which must be success."""
    code, *values = result
    assert code == 0, code
    return values[0] if len(values) == 1 else values or None


def _ptx():
    program = _ok(nvrtc.nvrtcCreateProgram(SCALE, b"scale.cu", 0, [], []))
    _ok(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_80"]))
    text = b" " * _ok(nvrtc.nvrtcGetPTXSize(program))
    _ok(nvrtc.nvrtcGetPTX(program, text))
    _ok(nvrtc.nvrtcDestroyProgram(program))
    return text


def _arguments(pointer, factor, count):
    values = (np.array([int(pointer)], np.uint64), np.array([factor], np.float32), np.array([count], np.int32))
    return values, np.array([value.ctypes.data for value in values], np.uint64)


def driver_calls():
    _ok(driver.cuInit(0))
    device = _ok(driver.cuDeviceGet(0))
    context = _ok(driver.cuDevicePrimaryCtxRetain(device))
    _ok(driver.cuCtxSetCurrent(context))
    assert _ok(driver.cuDeviceTotalMem(device)) == 2 << 30 and _ok(driver.cuMemGetInfo())[1] == 2 << 30
    module = _ok(driver.cuModuleLoadData(_ptx()))
    kernel = _ok(driver.cuModuleGetFunction(module, b"scale"))
    constant, size = _ok(driver.cuModuleGetGlobal(module, b"offset"))
    assert size == 4
    _ok(driver.cuMemcpyHtoD(constant, np.array([0.5], np.float32).ctypes.data, 4))
    host = np.arange(5000, dtype=np.float32)
    stream = _ok(driver.cuStreamCreate(0))
    memory = _ok(driver.cuMemAllocAsync(host.nbytes, stream))
    _ok(driver.cuMemcpyHtoDAsync(memory, host.ctypes.data, host.nbytes, stream))
    held, pointers = _arguments(memory, 3, 5000)
    _ok(driver.cuLaunchKernel(kernel, 40, 1, 1, 128, 1, 1, 0, stream, pointers.ctypes.data, 0))
    out = np.empty_like(host)
    _ok(driver.cuMemcpyDtoHAsync(out.ctypes.data, memory, out.nbytes, stream))
    _ok(driver.cuMemFreeAsync(memory, stream))
    _ok(driver.cuStreamSynchronize(stream))
    assert held and np.array_equal(out, host * 3 + np.float32(0.5))
    _ok(driver.cuModuleUnload(module))
    _ok(driver.cuStreamDestroy(stream))
    return [out]


def runtime_calls():
    assert _ok(runtime.cudaGetDeviceCount()) == 1
    properties = _ok(runtime.cudaGetDeviceProperties(0))
    assert properties.totalGlobalMem == 2 << 30 and properties.warpSize == 32 and properties.managedMemory
    library = _ok(runtime.cudaLibraryLoadData(_ptx(), [], [], 0, [], [], 0))
    kernel = _ok(runtime.cudaLibraryGetKernel(library, b"scale"))
    host = np.arange(3000, dtype=np.float32)
    memory, stream = _ok(runtime.cudaMalloc(host.nbytes)), _ok(runtime.cudaStreamCreate())
    begin, end = (_ok(runtime.cudaEventCreate()) for _ in range(2))
    kinds = runtime.cudaMemcpyKind
    _ok(runtime.cudaMemcpyAsync(memory, host.ctypes.data, host.nbytes, kinds.cudaMemcpyHostToDevice, stream))
    held, pointers = _arguments(memory, 2, 3000)
    _ok(runtime.cudaEventRecord(begin, stream))
    for _ in range(3):
        # A runtime's kernel is the driver's.
        _ok(driver.cuLaunchKernel(int(kernel), 24, 1, 1, 128, 1, 1, 0, int(stream), pointers.ctypes.data, 0))
    _ok(runtime.cudaEventRecord(end, stream))
    _ok(runtime.cudaEventSynchronize(end))
    assert _ok(runtime.cudaEventElapsedTime(begin, end)) > 0
    out = np.empty_like(host)
    _ok(runtime.cudaMemcpy(out.ctypes.data, memory, out.nbytes, kinds.cudaMemcpyDeviceToHost))
    assert held and np.array_equal(out, host * 8)
    _ok(runtime.cudaMemset(memory, 0, host.nbytes))
    _ok(runtime.cudaDeviceSynchronize())
    attributes = _ok(runtime.cudaPointerGetAttributes(memory))
    assert attributes.type == runtime.cudaMemoryType.cudaMemoryTypeDevice
    _ok(runtime.cudaFree(memory))
    free, total = _ok(runtime.cudaMemGetInfo())
    assert 0 < free <= total == 2 << 30
    assert runtime.cudaMalloc(total + 1)[0] == runtime.cudaError_t.cudaErrorMemoryAllocation
    return [out]


def managed_memory():
    address = _ok(runtime.cudaMallocManaged(4000, runtime.cudaMemAttachGlobal))
    view = np.frombuffer((ctypes.c_char * 4000).from_address(address), np.uint32)
    _ok(runtime.cudaMemset(address, 3, 4000))
    _ok(runtime.cudaDeviceSynchronize())
    assert _ok(runtime.cudaPointerGetAttributes(address)).type == runtime.cudaMemoryType.cudaMemoryTypeManaged
    kept = view.copy()
    _ok(runtime.cudaFree(address))
    assert (kept == 0x03030303).all()
    return [kept]


def what_is_not_provided_says_so():
    missing = runtime.cudaError_t.cudaErrorNotSupported
    floats = _ok(runtime.cudaCreateChannelDesc(32, 0, 0, 0, runtime.cudaChannelFormatKind.cudaChannelFormatKindFloat))
    extent = runtime.cudaExtent()
    extent.width = extent.height = 8
    assert runtime.cudaMallocMipmappedArray(floats, extent, 2, 0)[0] == missing
    _ok(runtime.cudaDeviceSynchronize())


if __name__ == "__main__":
    cases.main(globals())
