"""Copies page-locked memory in both directions and compares it with NumPy: waited for, in a stream, from odd places, in
rows, and while a kernel writes. Once, or for each line on standard input; prints "ok" each time."""

import sys

import numpy as np
from cu import cu, kernels, launch, ok, pinned, start, u32, u64

MIB = 1 << 20
SIZE = 16 * MIB

start()
add = kernels()["add"]
rng = np.random.default_rng(3)
stream = ok(cu.cuStreamCreate(0))
device, twice = ok(cu.cuMemAlloc(SIZE)), ok(cu.cuMemAlloc(SIZE))
source, result = pinned(SIZE, np.uint8), pinned(SIZE, np.uint8)


def waited_for():
    source[:] = rng.integers(0, 256, SIZE, np.uint8)
    ok(cu.cuMemcpyHtoD(device, source, SIZE))
    # Returned: the program may change it.
    expected = source.copy()
    source[:] = 0
    ok(cu.cuMemcpyDtoH(result, device, SIZE))
    assert np.array_equal(result, expected)


def in_a_stream():
    source[:] = rng.integers(0, 256, SIZE, np.uint8)
    numbers = source.view(np.float32)
    numbers[:] = rng.random(numbers.size, np.float32)
    ok(cu.cuMemcpyHtoDAsync(device, source, SIZE, stream))
    there = u64(int(device))
    launch(add, numbers.size // 256, 256, [there, there, u64(int(twice)), u32(numbers.size)], int(stream))
    ok(cu.cuMemcpyDtoHAsync(result, twice, SIZE, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert np.array_equal(result.view(np.float32), numbers + numbers)


def from_odd_places():
    for first, size in ((1, MIB + 3), (4095, 65_537), (SIZE - 70_000, 70_000), (12_345, 64 << 10), (7, 100)):
        source[first : first + size] = rng.integers(0, 256, size, np.uint8)
        ok(cu.cuMemcpyHtoDAsync(int(device) + first, source[first:], size, stream))
        ok(cu.cuMemcpyDtoHAsync(result[SIZE - size :], int(device) + first, size, stream))
        ok(cu.cuStreamSynchronize(stream))
        assert np.array_equal(result[SIZE - size :], source[first : first + size])


def in_rows():
    """Rows lie together in the program's memory and apart in the device's, and the other way round."""
    rows, width, pitch = 1000, 1000, 1024
    ok(cu.cuMemsetD8(device, 9, SIZE))
    source[:] = rng.integers(0, 256, SIZE, np.uint8)
    for host_pitch, device_pitch in ((width, pitch), (pitch, width)):
        box = cu.CUDA_MEMCPY2D()
        box.srcMemoryType, box.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_HOST, cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
        box.srcHost, box.dstDevice = source.ctypes.data, device
        box.srcPitch, box.dstPitch, box.WidthInBytes, box.Height = host_pitch, device_pitch, width, rows
        ok(cu.cuMemcpy2DAsync(box, stream))
        ok(cu.cuMemcpyDtoHAsync(result, device, rows * device_pitch, stream))
        ok(cu.cuStreamSynchronize(stream))
        there = result[: rows * device_pitch].reshape(rows, device_pitch)[:, :width]
        assert np.array_equal(there, source[: rows * host_pitch].reshape(rows, host_pitch)[:, :width])


def of_other_memory():
    """Freed, and allocated again at the same addresses."""
    for size in (MIB, 3 * MIB, MIB):
        other = pinned(size, np.uint8)
        assert not other.any()
        other[:] = rng.integers(0, 256, size, np.uint8)
        ok(cu.cuMemcpyHtoDAsync(device, other, size, stream))
        expected = other.copy()
        address = other.ctypes.data
        del other
        # Waits for the copy.
        ok(cu.cuMemFreeHost(address))
        ok(cu.cuMemcpyDtoH(result, device, size))
        assert np.array_equal(result[:size], expected)


def everything():
    for check in (waited_for, in_a_stream, from_odd_places, in_rows, of_other_memory):
        check()
    print("ok", flush=True)


everything()
if "again" in sys.argv:
    for _ in sys.stdin:
        everything()
