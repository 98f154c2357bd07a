"""Prints how many words of a pattern 64 MiB of new memory hold; leaves the pattern there, `freed` or `kept`."""

import sys

import numpy as np
from cu import cu, download, ok, start

SIZE, PATTERN = 64 << 20, 0xC0FFEE11

start()
piece = ok(cu.cuMemAlloc(SIZE))
print(int(np.count_nonzero(download(piece, SIZE // 4) == PATTERN)))
ok(cu.cuMemsetD32(piece, PATTERN, SIZE // 4))
ok(cu.cuCtxSynchronize())
if sys.argv[1] == "freed":
    ok(cu.cuMemFree(piece))
