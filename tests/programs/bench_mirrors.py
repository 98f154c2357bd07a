"""How long a command and a wait for it take, beside page-locked buffers that kernels may use.

    remotegpu run -p 0.25 -- .venv/bin/python tests/programs/bench_mirrors.py [HOW [BUFFERS [WORDS]]]

`host` (the default): a kernel writes 64 random words in each of 8 of the 104 buffers of 1,024 words. `device`: as many
words of memory of the device beside the buffers. `none`: that, without buffers that kernels can use. `unchanged`:
memory of the device is filled, and the buffers stay as they are. `word`: host and device change a word each of the
first buffer, every time. All words are compared at the end. `tools/compare/mirrors.py` runs each.
"""

import sys
import time

import numpy as np
from cu import cu, launch, ok, pinned, start, u32, u64
from mirrors.kernels import EXCHANGE_AND_BUMP

HOW, BUFFERS, WORDS = (*sys.argv[1:], *("host", 104, 1024)[len(sys.argv) - 1 :])
BUFFERS, WORDS = int(BUFFERS), int(WORDS)
CHANGED, PLACES, WARM, STEPS = 8, 64, 20, 300
COUNT = CHANGED * PLACES


class Exchanging:
    """A kernel writes random words, in the buffers or on the device."""

    def __init__(self, buffers, stream):
        self.buffers, self.stream, self.on_device = buffers, stream, HOW != "host"
        self.exchange = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(EXCHANGE_AND_BUMP)), b"exchange"))
        self.memory = int(ok(cu.cuMemAlloc(4 * BUFFERS * WORDS)))
        bases = [self.memory + 4 * WORDS * n if self.on_device else b.ctypes.data for n, b in enumerate(buffers)]
        chance = np.random.default_rng(1)
        # What each step writes, and where, lies on the device.
        places, values = np.zeros((STEPS, COUNT), np.uint64), chance.integers(0, 1 << 32, (STEPS, COUNT), np.uint32)
        self.expected = np.zeros((BUFFERS, WORDS), np.uint32)
        for step in range(STEPS):
            for number, index in enumerate(chance.choice(BUFFERS, CHANGED, replace=False)):
                part, at = slice(PLACES * number, PLACES * (number + 1)), chance.choice(WORDS, PLACES, replace=False)
                places[step, part] = bases[index] + 4 * at.astype(np.uint64)
                self.expected[index][at] = values[step, part]
        self.tables = [int(ok(cu.cuMemAlloc(size * STEPS * COUNT))) for size in (8, 4, 4)]
        ok(cu.cuMemcpyHtoD(self.tables[0], places, places.nbytes))
        ok(cu.cuMemcpyHtoD(self.tables[1], values, values.nbytes))

    def command(self, step):
        addresses = [table + size * COUNT * step for table, size in zip(self.tables, (8, 4, 4), strict=True)]
        launch(self.exchange, 1, COUNT, [*map(u64, addresses), u32(COUNT)], self.stream)

    def are_right(self):
        found = np.empty_like(self.expected)
        if self.on_device:
            ok(cu.cuMemcpyDtoH(found, self.memory, found.nbytes))
        else:
            found[:] = self.buffers
        return (found == self.expected).all()


class Filling:
    """Memory of the device is filled, and maybe a word of the first buffer, in which the host changes another one."""

    def __init__(self, buffers, stream):
        self.buffers, self.stream, self.changes = buffers, stream, HOW == "word"
        self.memory = ok(cu.cuMemAlloc(64))

    def command(self, step):
        if self.changes:
            self.buffers[0][-1] = step
            ok(cu.cuMemsetD32Async(self.buffers[0].ctypes.data, step, 1, self.stream))
        else:
            ok(cu.cuMemsetD32Async(self.memory, step, 16, self.stream))

    def are_right(self):
        expected = STEPS - 1 if self.changes else 0
        first = self.buffers[0]
        return first[0] == first[-1] == expected and not any(words[1:-1].any() for words in self.buffers)


def main():
    start()
    buffers = [pinned(WORDS) for _ in range(BUFFERS)]
    for array in buffers:
        array[:] = 0
        if HOW != "none":
            ok(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0))
    stream, times = ok(cu.cuStreamCreate(1)), []
    work = (Filling if HOW in {"unchanged", "word"} else Exchanging)(buffers, stream)
    for step in range(STEPS):
        began = time.perf_counter()
        work.command(step)
        given = time.perf_counter()
        ok(cu.cuStreamSynchronize(stream))
        times.append((given - began, time.perf_counter() - began))
    assert work.are_right(), "the buffers have other words"
    given, waits = 1e6 * np.array(times[WARM:]).T
    print(
        f"{HOW}, {BUFFERS} buffers of {4 * WORDS} bytes: command {np.median(given):.0f} us, "
        f"with the wait {np.median(waits):.0f} (best {waits.min():.0f})"
    )


if __name__ == "__main__":
    main()
