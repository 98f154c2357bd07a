"""Page-locked memory that kernels use in place: what the host wrote before a launch is there, and what a kernel wrote
is seen by the host after any call that waits for it."""

import ctypes
import mmap

import numpy as np
from cu import CudaError, cu, download, kernels, launch, ok, start, u32, u64, upload

DEVICEMAP = cu.CU_MEMHOSTALLOC_DEVICEMAP
COUNT = 3000

start()
assert ok(cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 0)) == 1
functions = kernels()
streams = [ok(cu.cuStreamCreate(flags)) for flags in (0, 1)]
event = ok(cu.cuEventCreate(0))


def mapped(count, dtype=np.float32):
    """A NumPy view of mapped memory; its address is the device's, too."""
    size = count * np.dtype(dtype).itemsize
    address = int(ok(cu.cuMemHostAlloc(size, DEVICEMAP)))
    assert int(ok(cu.cuMemHostGetDevicePointer(address, 0))) == address
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def add(a, b, c, count, stream):
    arguments = [u64(int(a)), u64(int(b)), u64(int(c)), u32(count)]
    launch(functions["add"], -(-count // 256), 256, arguments, stream)


def wait_for_context(stream):
    ok(cu.cuCtxSynchronize())


def wait_for_event(stream):
    ok(cu.cuEventRecord(event, stream))
    ok(cu.cuEventSynchronize(event))


def wait_for_query(stream):
    while int(cu.cuStreamQuery(stream)[0]) == 600:
        pass


a, b, c = (mapped(COUNT) for _ in range(3))
waits = [wait_for_context, wait_for_event, wait_for_query, lambda stream: ok(cu.cuStreamSynchronize(stream))]
for turn, wait in enumerate(waits * 3):
    stream = streams[turn % 2]
    a[:], b[:] = np.arange(COUNT) * turn, turn
    add(a.ctypes.data, b.ctypes.data, c.ctypes.data, COUNT, stream)
    wait(stream)
    assert (c == np.arange(COUNT) * turn + turn).all(), turn

# Both sides write to one array, each to its own elements; a kernel of another stream sees what the host wrote.
both = mapped(2 * COUNT)
add(a.ctypes.data, b.ctypes.data, both.ctypes.data, COUNT, streams[0])
both[COUNT:] = 5
add(both.ctypes.data + 4 * COUNT, both.ctypes.data + 4 * COUNT, c.ctypes.data, COUNT, streams[1])
ok(cu.cuStreamSynchronize(streams[1]))
assert (c == 10).all()
ok(cu.cuStreamSynchronize(streams[0]))
assert (both[:COUNT] == a + b).all() and (both[COUNT:] == 5).all()

# Changes that lie apart: every second element, in memory that a kernel wrote before.
both[::2] = 7
expected = np.concatenate([a + b, np.full(COUNT, 5)]).astype(np.float32)
expected[::2] = 7
total = ok(cu.cuMemAlloc(both.nbytes))
add(both.ctypes.data, both.ctypes.data, total, 2 * COUNT, streams[0])
ok(cu.cuStreamSynchronize(streams[0]))
assert (download(total, 2 * COUNT, np.float32) == 2 * expected).all()

# Copies stand in stream order with the kernels that use the memory, whichever side they name.
add(a.ctypes.data, a.ctypes.data, c.ctypes.data, COUNT, streams[1])
ok(cu.cuMemcpyHtoDAsync(total, c.ctypes.data, c.nbytes, streams[1]))
ok(cu.cuMemcpyDtoHAsync(b.ctypes.data, total, b.nbytes, streams[1]))
ok(cu.cuStreamSynchronize(streams[1]))
assert (b == 2 * a).all() and (download(total, COUNT, np.float32) == 2 * a).all()
b[:] = 3
ok(cu.cuMemcpyHtoD(total, b.ctypes.data, b.nbytes))
b[:] = 4
assert (download(total, COUNT, np.float32) == 3).all()
ok(cu.cuMemcpyDtoH(b.ctypes.data, total, b.nbytes))
assert (b == 3).all()
ok(cu.cuMemsetD32(b.ctypes.data, 0x40000000, COUNT))
ok(cu.cuCtxSynchronize())
assert (b == 2).all()

# What it is.
kind = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
assert ok(cu.cuPointerGetAttribute(kind, a.ctypes.data)) == cu.CUmemorytype.CU_MEMORYTYPE_HOST
try:
    ok(cu.cuMemFree(a.ctypes.data))
    raise AssertionError("memory of the host is no allocation of the device")
except CudaError as error:
    assert error.code == 1

# The program's own memory, registered. Then all of it goes, some under a kernel that still writes.
own = mmap.mmap(-1, 8192)
view = np.frombuffer(own, np.float32)
view[:] = 1
ok(cu.cuMemHostRegister(view.ctypes.data, 8192, cu.CU_MEMHOSTREGISTER_DEVICEMAP))
place = int(ok(cu.cuMemHostGetDevicePointer(view.ctypes.data, 0)))
add(place, place, place, 2048, streams[0])
ok(cu.cuStreamSynchronize(streams[0]))
assert (view == 2).all()
launch(functions["late_fill"], 1, 256, [u64(place), u32(2048), u32(0x40800000), u64(50_000_000)], streams[0])
ok(cu.cuMemHostUnregister(view.ctypes.data))
assert (view == 4).all()
launch(functions["late_fill"], 1, 256, [u64(a.ctypes.data), u32(COUNT), u32(1), u64(50_000_000)], streams[0])
for array in (a, b, c, both):
    ok(cu.cuMemFreeHost(array.ctypes.data))
again = upload(np.arange(COUNT, dtype=np.uint32))
assert (download(again, COUNT) == np.arange(COUNT)).all()
print("ok")
