"""Large copies in both directions from pageable and page-locked memory, with a kernel between them in the same stream,
compared with NumPy; by two threads at once, too. Once, or for each line on standard input; prints "ok" each time."""

import sys
import threading

import numpy as np
from cu import cu, kernels, launch, ok, pinned, start, u32, u64

MIB = 1 << 20

context = start()
add = kernels()["add"]
rng = np.random.default_rng(5)


def doubled(source, result, mebibytes, stream):
    """Source, added to itself on the device, is the result."""
    size = mebibytes * MIB
    numbers, sums = source[: size // 4], result[: size // 4]
    numbers[:] = rng.random(numbers.size, np.float32)
    sums[:] = 0
    device, twice = ok(cu.cuMemAlloc(size)), ok(cu.cuMemAlloc(size))
    ok(cu.cuMemcpyHtoDAsync(device, numbers, size, stream))
    expected = numbers + numbers
    if numbers.base is not None and mebibytes % 2:
        # Returned, from pageable memory: the program may change it.
        numbers[:] = 0
    there = u64(int(device))
    launch(add, numbers.size // 256, 256, [there, there, u64(int(twice)), u32(numbers.size)], int(stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemcpyDtoH(sums, twice, size))
    assert np.array_equal(sums, expected)
    sums[:] = 0
    ok(cu.cuMemcpyDtoHAsync(sums, twice, size, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert np.array_equal(sums, expected)
    for memory in (device, twice):
        ok(cu.cuMemFree(memory))


def odd(stream):
    """From and to odd places, of an odd size, waited for in the stream of the context."""
    size = 9 * MIB + 4097
    source, result = rng.integers(0, 256, size + 3, np.uint8), np.zeros(size + 5, np.uint8)
    device = ok(cu.cuMemAlloc(size + 1))
    ok(cu.cuMemcpyHtoD(int(device) + 1, source[3:], size))
    ok(cu.cuMemcpyDtoH(result[5:], int(device) + 1, size))
    assert np.array_equal(result[5:], source[3:])
    assert not result[:5].any()
    ok(cu.cuMemFree(device))


def everything():
    streams = [ok(cu.cuStreamCreate(flags)) for flags in (0, 1)]
    for mebibytes in (8, 13, 64):
        size = mebibytes * MIB // 4
        doubled(np.empty(size, np.float32), np.empty(size, np.float32), mebibytes, streams[0])
    locked = [pinned(16 * MIB, np.uint8).view(np.float32) for _ in range(2)]
    doubled(*locked, 16, streams[1])
    odd(streams[0])
    failed = []

    def beside(stream):
        try:
            ok(cu.cuCtxSetCurrent(context))
            size = 20 * MIB // 4
            doubled(np.empty(size, np.float32), np.empty(size, np.float32), 20, stream)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=beside, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    print("ok", flush=True)


everything()
if "again" in sys.argv:
    for _ in sys.stdin:
        everything()
