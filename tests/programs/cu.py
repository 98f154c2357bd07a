"""Helpers of the test programs: cuda.bindings' driver with errors raised, and launches with typed arguments."""

import ctypes
import pathlib

import numpy as np
from cuda.bindings import driver as cu

u32, u64 = ctypes.c_uint32, ctypes.c_uint64


class CudaError(RuntimeError):
    def __init__(self, code):
        self.code = int(code)
        super().__init__(f"CUDA error {int(code)}: {code!r}")


def ok(result):
    code, *values = result if isinstance(result, tuple) else (result,)
    if int(code):
        raise CudaError(code)
    return values[0] if len(values) == 1 else tuple(values)


def code_of(call, *arguments):
    """Returns the number of the CUDA error that the call returns, 0 if it worked."""
    code, *_ = call(*arguments)
    return int(code)


def start(device=0):
    """Initialises CUDA and makes the device's primary context current."""
    ok(cu.cuInit(0))
    context = ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(device))))
    ok(cu.cuCtxSetCurrent(context))
    return context


def load():
    """Loads the module kernels.ptx."""
    return ok(cu.cuModuleLoadData((pathlib.Path(__file__).parent / "kernels.ptx").read_bytes() + b"\0"))


def kernels():
    """name -> function, of kernels.ptx."""
    module = load()
    return {n: ok(cu.cuModuleGetFunction(module, n.encode())) for n in ("add", "spin", "late_fill", "increment")}


def launch(function, blocks, threads, arguments, stream=0):
    """`arguments`: ctypes scalars; a device pointer is u64(int(pointer))."""
    values, types = tuple(a.value for a in arguments), tuple(type(a) for a in arguments)
    ok(cu.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, (values, types), 0))


def upload(array):
    pointer = ok(cu.cuMemAlloc(array.nbytes))
    ok(cu.cuMemcpyHtoD(pointer, array, array.nbytes))
    return pointer


def location(ordinal):
    """The memory of a device."""
    where = cu.CUmemLocation()
    where.type, where.id = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, ordinal
    return where


def access(ordinal, flags):
    """A device's access to memory."""
    description = cu.CUmemAccessDesc()
    description.location, description.flags = location(ordinal), flags
    return description


def on_device():
    """The properties by which `cuMemCreate` makes memory of the first device, and access to read and write it."""
    properties, access = cu.CUmemAllocationProp(), cu.CUmemAccessDesc()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location = properties.location
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return properties, access


def take_all():
    """Allocates until nothing is left, in pieces of 64 MiB down to 2 MiB; yields each piece with its size in bytes."""
    size = 64 << 20
    while size >= 2 << 20:
        try:
            piece = ok(cu.cuMemAlloc(size))
        except CudaError:
            size //= 2
            continue
        yield piece, size


def download(pointer, count, dtype=np.uint32):
    array = np.empty(count, dtype)
    ok(cu.cuMemcpyDtoH(array, pointer, array.nbytes))
    return array


def pinned(count, dtype=np.uint32):
    """A NumPy view of page-locked memory."""
    size = count * np.dtype(dtype).itemsize
    address = int(ok(cu.cuMemHostAlloc(size, 0)))
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)
