"""Fills all memory it can get with a pattern, says so, and waits to be killed."""

import signal

from cu import CudaError, cu, ok, start

start()
size, total = 64 << 20, 0
while size >= 2 << 20:
    try:
        piece = ok(cu.cuMemAlloc(size))
    except CudaError:
        size //= 2
        continue
    ok(cu.cuMemsetD32(piece, 0xC0FFEE11, size // 4))
    total += size
ok(cu.cuCtxSynchronize())
print(total, flush=True)
signal.pause()
