"""Fills all memory it can get with a pattern, says so, and waits to be killed."""

import signal

from cu import cu, ok, start, take_all

start()
total = 0
for piece, size in take_all():
    ok(cu.cuMemsetD32(piece, 0xC0FFEE11, size // 4))
    total += size
ok(cu.cuCtxSynchronize())
print(total, flush=True)
signal.pause()
