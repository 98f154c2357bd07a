"""The driver interface for random programs: plain ctypes, so that nothing else orders the calls."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)
HERE = Path(__file__).parent

OK, INVALID_VALUE, INVALID_HANDLE, NOT_READY = 0, 1, 400, 600
MAX_DYNAMIC_SHARED = 8
STACK_SIZE, PRINTF_FIFO, MALLOC_HEAP = 0, 1, 2
NON_BLOCKING = 1
DEVICE_MAP = 2
AT_LEAST = 0
DISABLE_TIMING = 2

P = c_void_p
U = c_uint64
PROTOTYPES = {
    "cuInit": [c_uint],
    "cuDeviceGetAttribute": [P, c_int, c_int],
    "cuCtxCreate_v2": [P, c_uint, c_int],
    "cuCtxDestroy_v2": [P],
    "cuCtxSetCurrent": [P],
    "cuCtxSynchronize": [],
    "cuCtxSetLimit": [c_int, c_size_t],
    "cuCtxGetLimit": [P, c_int],
    "cuCtxSetCacheConfig": [c_int],
    "cuModuleLoadData": [P, c_char_p],
    "cuModuleUnload": [P],
    "cuModuleGetFunction": [P, P, c_char_p],
    "cuModuleGetGlobal_v2": [P, P, P, c_char_p],
    "cuFuncSetAttribute": [P, c_int, c_int],
    "cuFuncGetAttribute": [P, c_int, P],
    "cuFuncSetCacheConfig": [P, c_int],
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": [P, P, c_int, c_size_t],
    "cuLaunchKernel": [P, *[c_uint] * 7, P, P, P],
    "cuLaunchHostFunc": [P, HOST_FUNCTION, P],
    "cuStreamCreate": [P, c_uint],
    "cuStreamDestroy_v2": [P],
    "cuStreamSynchronize": [P],
    "cuStreamQuery": [P],
    "cuStreamWaitEvent": [P, P, c_uint],
    "cuStreamWaitValue32_v2": [P, U, c_uint, c_uint],
    "cuStreamWriteValue32_v2": [P, U, c_uint, c_uint],
    "cuEventCreate": [P, c_uint],
    "cuEventDestroy_v2": [P],
    "cuEventRecord": [P, P],
    "cuEventSynchronize": [P],
    "cuEventQuery": [P],
    "cuEventElapsedTime": [P, P, P],
    "cuMemAlloc_v2": [P, c_size_t],
    "cuMemFree_v2": [U],
    "cuMemAllocAsync": [P, c_size_t, P],
    "cuMemFreeAsync": [U, P],
    "cuDeviceGetDefaultMemPool": [P, c_int],
    "cuMemPoolTrimTo": [P, c_size_t],
    "cuMemHostAlloc": [P, c_size_t, c_uint],
    "cuMemHostGetDevicePointer_v2": [P, P, c_uint],
    "cuMemFreeHost": [P],
    "cuMemcpyHtoDAsync_v2": [U, P, c_size_t, P],
    "cuMemcpyDtoHAsync_v2": [P, U, c_size_t, P],
    "cuMemcpyDtoDAsync_v2": [U, U, c_size_t, P],
    "cuMemcpyDtoH_v2": [P, U, c_size_t],
    "cuMemcpyHtoD_v2": [U, P, c_size_t],
    "cuMemsetD32Async": [U, c_uint, c_size_t, P],
    "cuMemsetD32_v2": [U, c_uint, c_size_t],
}


class DriverError(AssertionError):
    pass


class Driver:
    """Every function by its name without `cu`; `ok` raises where a call must succeed."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in PROTOTYPES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, c_int

    def call(self, name: str, *arguments: object) -> int:
        code: int = getattr(self._library, name)(*arguments)
        return code

    def ok(self, name: str, *arguments: object) -> None:
        if code := self.call(name, *arguments):
            raise DriverError(f"{name} -> {code}")

    def made(self, name: str, *arguments: object) -> int:
        """Returns the handle or address that a successful call stores behind its first argument."""
        result = c_uint64()
        self.ok(name, byref(result), *arguments)
        return result.value

    def number(self, name: str, *arguments: object) -> tuple[int, int]:
        """The code, and the number that the call stored behind its first argument."""
        result = c_uint64()
        return self.call(name, byref(result), *arguments), result.value

    def elapsed(self, start: int, end: int) -> tuple[int, float]:
        result = c_float()
        return self.call("cuEventElapsedTime", byref(result), start, end), result.value

    def launch(
        self, function: int, stream: int, words: tuple[int, ...], grid: int = 1, block: int = 1, shared: int = 0
    ) -> int:
        values = (c_uint64 * len(words))(*words)
        start = ctypes.addressof(values)
        pointers = (c_void_p * len(words))(*(start + 8 * i for i in range(len(words))))
        return self.call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared, stream, pointers, None)


def pointer_at(address: int) -> ctypes._Pointer[c_uint64]:
    return ctypes.cast(address, POINTER(c_uint64))
