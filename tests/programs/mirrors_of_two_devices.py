"""Kernels of two devices add to page-locked memory, of which each device has its own, and the host changes it before
each kernel. Prints "ok"."""

import numpy as np
from cu import cu, launch, ok, pinned, start, u32, u64
from mirrors.kernels import EXCHANGE_AND_BUMP

# Each is more than devices map at a time.
WORDS, USED, ROUNDS = (4 << 20) // 4, 1024, 300
chance = np.random.default_rng(5)
sides = []
for device in range(2):
    context = start(device)
    bump = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(EXCHANGE_AND_BUMP)), b"bump"))
    sides.append((context, bump, ok(cu.cuStreamCreate(1)), pinned(WORDS)[:USED]))
for round_ in range(ROUNDS):
    given = [chance.integers(0, 1 << 32, USED, np.uint32) for _ in sides]
    for (context, bump, stream, words), now in zip(sides, given, strict=True):
        ok(cu.cuCtxSetCurrent(context))
        words[:] = now
        launch(bump, 1, USED, [u64(words.ctypes.data), u32(7)], stream)
        now += np.uint32(7)
    for number, ((context, _, stream, words), now) in enumerate(zip(sides, given, strict=True)):
        ok(cu.cuCtxSetCurrent(context))
        ok(cu.cuStreamSynchronize(stream))
        assert (words == now).all(), (round_, number, np.flatnonzero(words != now)[:8])
print("ok")
