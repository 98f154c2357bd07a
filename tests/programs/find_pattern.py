"""Allocates all memory it can get and counts words that are not zero."""

import numpy as np
from cu import download, start, take_all

start()
total, dirty = 0, 0
for piece, size in take_all():
    total += size
    dirty += int(np.count_nonzero(download(piece, size // 4)))
print(total, dirty)
