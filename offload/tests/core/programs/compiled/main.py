"""numba: compiles the user's source, and caches what it compiled."""

import numpy as np
from kernels import total
from numba import njit


@njit
def local(x):
    return x * 2 + 1


print(total(np.arange(1000.0)), total(np.ones((3, 3)).ravel()), local(20))
print(total.stats.cache_path != "", len(total.signatures))
