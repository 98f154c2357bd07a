"""Kernels poll a word of page-locked memory that the host sets after the launch, and then only waits or asks: `wait`
waits for the stream, `ask` asks until it is done. Prints "ok"."""

import sys

from cu import cu, kernels, launch, ok, pinned, start, u64

NOT_READY, ROUNDS = 600, 5
start()
spin, stream = kernels()["spin"], ok(cu.cuStreamCreate(1))
flag, seen = pinned(1), pinned(1)
for value in range(1, ROUNDS + 1):
    flag[0] = 0
    launch(spin, 1, 1, [u64(flag.ctypes.data), u64(seen.ctypes.data)], stream)
    flag[0] = value
    if sys.argv[1] == "ask":
        while int(cu.cuStreamQuery(stream)[0]) == NOT_READY:
            pass
    else:
        ok(cu.cuStreamSynchronize(stream))
    assert seen[0] == value, (value, seen[0])
print("ok")
