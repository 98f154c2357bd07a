"""How long a launch and a wait for it take, beside page-locked buffers in which the kernel writes.

A kernel writes 64 random words in each of 8 of the buffers. With `device` it writes as many words of memory of the
device beside the same buffers, with `none` there are no buffers that kernels can use. All words are compared at its
end.

    remotegpu run -p 0.25 -- .venv/bin/python tests/programs/bench_mirrors.py [host|device|none]
"""

import sys
import time

import numpy as np
from cu import cu, launch, ok, pinned, start, u32, u64
from mirrors.kernels import EXCHANGE_AND_BUMP

BUFFERS, WORDS, CHANGED, PLACES, WARM, STEPS = 104, 1024, 8, 64, 20, 300
COUNT = CHANGED * PLACES


def main(where: str) -> None:
    """Measure, and print microseconds."""
    start()
    exchange = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(EXCHANGE_AND_BUMP)), b"exchange"))
    chance = np.random.default_rng(1)
    buffers = [pinned(WORDS) for _ in range(BUFFERS)]
    for array in buffers if where != "none" else ():
        ok(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0))
    memory = int(ok(cu.cuMemAlloc(4 * BUFFERS * WORDS)))
    on_device = where != "host"
    bases = [memory + 4 * WORDS * n if on_device else array.ctypes.data for n, array in enumerate(buffers)]

    # What each step writes, and where, lies on the device.
    places, values = np.zeros((STEPS, COUNT), np.uint64), chance.integers(0, 1 << 32, (STEPS, COUNT), np.uint32)
    expected = np.zeros((BUFFERS, WORDS), np.uint32)
    for step in range(STEPS):
        for number, index in enumerate(chance.choice(BUFFERS, CHANGED, replace=False)):
            part, at = slice(PLACES * number, PLACES * (number + 1)), chance.choice(WORDS, PLACES, replace=False)
            places[step, part] = bases[index] + 4 * at.astype(np.uint64)
            expected[index][at] = values[step, part]
    tables = [int(ok(cu.cuMemAlloc(size * STEPS * COUNT))) for size in (8, 4, 4)]
    ok(cu.cuMemcpyHtoD(tables[0], places, places.nbytes))
    ok(cu.cuMemcpyHtoD(tables[1], values, values.nbytes))

    stream, times = ok(cu.cuStreamCreate(1)), []
    for step in range(STEPS):
        addresses = [table + size * COUNT * step for table, size in zip(tables, (8, 4, 4), strict=True)]
        began = time.perf_counter()
        launch(exchange, 1, COUNT, [*map(u64, addresses), u32(COUNT)], stream)
        launched = time.perf_counter()
        ok(cu.cuStreamSynchronize(stream))
        times.append((launched - began, time.perf_counter() - began))
    found = np.empty_like(expected)
    if on_device:
        ok(cu.cuMemcpyDtoH(found, memory, found.nbytes))
    else:
        found[:] = buffers
    assert (found == expected).all(), "the buffers have other words"
    launches, waits = 1e6 * np.array(times[WARM:]).T
    print(
        f"{where}: launch {np.median(launches):.0f} us, with the wait {np.median(waits):.0f} (best {waits.min():.0f})"
    )


if __name__ == "__main__":
    main((*sys.argv[1:], "host")[0])
