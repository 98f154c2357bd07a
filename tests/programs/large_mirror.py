"""Fills 64 MiB of page-locked memory with zeros and with a value by its device address, along with words that the host
writes, and checks every word after the wait. Argument: `allocated` or `registered`.
"""

import sys

import numpy as np
from cu import cu, ok, pinned, start

WORDS = (64 << 20) // 4
MORE = 3000

start()
if sys.argv[1] == "allocated":
    words = pinned(WORDS + MORE)
else:
    words = np.zeros(WORDS + MORE, np.uint32)
    ok(cu.cuMemHostRegister(words.ctypes.data, words.nbytes, 2))
stream = ok(cu.cuStreamCreate(1))
device = int(ok(cu.cuMemHostGetDevicePointer(words.ctypes.data, 0)))
expected = np.arange(len(words), dtype=np.uint32)
words[:] = expected
chance = np.random.default_rng(1)
for value, step in enumerate([0, 7, 0, 0]):
    at, count = int(chance.integers(MORE)), WORDS if step == 0 else 5000
    ok(cu.cuMemsetD32Async(device + 4 * at, step, count, stream))
    expected[at : at + count] = step
    ok(cu.cuStreamSynchronize(stream))
    assert (words == expected).all(), f"fill {value}: {np.flatnonzero(words != expected)[:4]}"
    places = chance.integers(0, len(words), 50)
    words[places] = expected[places] = value
    # The host's words are on the device, too: they come back with what is copied from there.
    back = ok(cu.cuMemAlloc(words.nbytes))
    ok(cu.cuMemcpyDtoDAsync(back, device, words.nbytes, stream))
    found = np.zeros_like(words)
    ok(cu.cuMemcpyDtoHAsync(found.ctypes.data, back, found.nbytes, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert (found == expected).all(), f"copy {value}: {np.flatnonzero(found != expected)[:4]}"
    ok(cu.cuMemFree(back))
print("right")
