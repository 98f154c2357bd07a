"""Page-locked memory that was not requested to be mapped, read and written by kernels at its host address: under
unified addressing all page-locked memory allows that.
"""

import ctypes

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u32, u64, upload

PORTABLE = cu.CU_MEMHOSTALLOC_PORTABLE
WRITECOMBINED = cu.CU_MEMHOSTALLOC_WRITECOMBINED
COUNT = 3000
# out = in + n for the words of a struct that is passed by value, with the addresses behind an odd number of words.
WITH_STRUCT = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry shift(.param .align 8 .b8 given[24])
{
    .reg .pred %p;
    .reg .b32 %r<5>;
    .reg .b64 %rd<6>;
    ld.param.u32 %r1, [given];
    ld.param.u64 %rd1, [given+8];
    ld.param.u64 %rd2, [given+16];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.u32 %r3, [%rd4];
    add.u32 %r4, %r3, %r1;
    st.global.u32 [%rd5], %r4;
    ret;
}
\0"""

start()
functions = kernels()
shift = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(WITH_STRUCT)), b"shift"))
streams = [ok(cu.cuStreamCreate(flags)) for flags in (0, 1)]


def page_locked(count, flags=0, dtype=np.float32):
    size = count * np.dtype(dtype).itemsize
    address = int(ok(cu.cuMemAllocHost(size) if flags is None else cu.cuMemHostAlloc(size, flags)))
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def place(array):
    return u64(array.ctypes.data)


def add(a, b, c, count, stream):
    launch(functions["add"], -(-count // 256), 256, [a, b, c, u32(count)], stream)


# Memory that is only copied costs nothing on the device.
before = ok(cu.cuMemGetInfo())[0]
large = page_locked(16 << 20)
large[:] = 3
copied = ok(cu.cuMemAlloc(4 * COUNT))
ok(cu.cuMemcpyHtoDAsync(copied, large.ctypes.data, 4 * COUNT, streams[1]))
ok(cu.cuStreamSynchronize(streams[1]))
ok(cu.cuMemFree(copied))
assert before - ok(cu.cuMemGetInfo())[0] < 16 << 20
ok(cu.cuMemFreeHost(large.ctypes.data))

# Every kind, each stream, several turns: what the host wrote before, what the kernel wrote after a wait.
for flags in (0, None, PORTABLE, PORTABLE | WRITECOMBINED):
    a, b, c = (page_locked(COUNT, flags) for _ in range(3))
    for turn in range(4):
        a[:], b[:] = np.arange(COUNT) * turn, turn
        add(place(a), place(b), place(c), COUNT, streams[turn % 2])
        ok(cu.cuStreamSynchronize(streams[turn % 2]))
        assert (c == np.arange(COUNT) * turn + turn).all(), (flags, turn)
    # From the middle on, to memory of the device, and on to another stream's kernel.
    total = ok(cu.cuMemAlloc(4 * COUNT))
    add(u64(a.ctypes.data + 400), u64(b.ctypes.data + 400), u64(int(total)), COUNT - 100, streams[0])
    ok(cu.cuStreamSynchronize(streams[0]))
    add(u64(int(total)), place(b), place(c), COUNT - 100, streams[1])
    ok(cu.cuCtxSynchronize())
    assert (c[: COUNT - 100] == np.arange(100, COUNT) * 3 + 6).all(), flags
    for array in (a, b, c):
        ok(cu.cuMemFreeHost(array.ctypes.data))
    ok(cu.cuMemFree(total))

# The address lies inside a struct.
words, out = page_locked(64, PORTABLE, np.uint32), page_locked(64, 0, np.uint32)
words[:] = np.arange(64)
given = np.array([1000, words.ctypes.data, out.ctypes.data], np.uint64)
pointers = np.array([given.ctypes.data], np.uint64)
ok(cu.cuLaunchKernel(shift, 1, 1, 1, 64, 1, 1, 0, streams[0], pointers.ctypes.data, 0))
ok(cu.cuStreamSynchronize(streams[0]))
assert (out == np.arange(64) + 1000).all()

# A flag that a kernel polls, set before the launch.
flag, seen = page_locked(1, PORTABLE, np.uint32), page_locked(1, 0, np.uint32)
flag[0] = 7
launch(functions["spin"], 1, 1, [place(flag), place(seen)], streams[1])
ok(cu.cuStreamSynchronize(streams[1]))
assert seen[0] == 7

# What a stream has yet to write to the memory is there when its kernel reads it: a late copy, a fill.
fresh, result = page_locked(COUNT, 0, np.uint32), page_locked(COUNT, PORTABLE, np.uint32)
source = upload(np.zeros(COUNT, np.uint32))
launch(functions["late_fill"], 1, 256, [u64(int(source)), u32(COUNT), u32(0x40000000), u64(30_000_000)], streams[1])
ok(cu.cuMemcpyDtoHAsync(fresh.ctypes.data, source, fresh.nbytes, streams[1]))
ok(cu.cuMemsetD32Async(fresh.ctypes.data, 0x40800000, 10, streams[1]))
add(place(fresh), place(fresh), place(result), COUNT, streams[1])
ok(cu.cuStreamSynchronize(streams[1]))
assert (result.view(np.float32) == np.where(np.arange(COUNT) < 10, 8, 4)).all()

# Copies and fills of memory that has been in a kernel stand in stream order with the kernels.
launch(functions["late_fill"], 1, 256, [place(fresh), u32(COUNT), u32(5), u64(30_000_000)], streams[0])
ok(cu.cuMemsetD32Async(fresh.ctypes.data, 6, 10, streams[0]))
ok(cu.cuMemcpyHtoDAsync(source, fresh.ctypes.data, fresh.nbytes, streams[0]))
ok(cu.cuStreamSynchronize(streams[0]))
assert (download(source, COUNT) == np.where(np.arange(COUNT) < 10, 6, 5)).all()
ok(cu.cuMemsetD16(fresh.ctypes.data, 0x101, 2))
assert fresh[0] == 0x01010101 and fresh[1] == 6

# Many small ones next to each other, freed in another order, one under a kernel that still writes; then all over again.
for turn in range(2):
    small = [page_locked(4, (0, PORTABLE)[i % 2], np.uint32) for i in range(60)]
    for index, array in enumerate(small):
        array[:] = index
        launch(functions["increment"], 1, 1, [place(array)], streams[index % 2])
    ok(cu.cuCtxSynchronize())
    assert all(array[0] == index + 1 for index, array in enumerate(small)), turn
    launch(functions["late_fill"], 1, 4, [place(small[7]), u32(4), u32(9), u64(30_000_000)], streams[0])
    for index in range(60):
        ok(cu.cuMemFreeHost(small[index * 7 % 60].ctypes.data))
for array in (words, out, flag, seen, fresh, result):
    ok(cu.cuMemFreeHost(array.ctypes.data))
again = upload(np.arange(COUNT, dtype=np.uint32))
assert (download(again, COUNT) == np.arange(COUNT)).all()
print("ok")
