"""`echo_tensor.py SEED COUNT`: copies random bytes to the device, to another place there, and back; prints `ok`."""

import sys

import numpy as np
from cu import cu, download, ok, start, upload

seed, count = map(int, sys.argv[1:])
start()
tensor = np.frombuffer(np.random.default_rng(seed).bytes(count), np.uint8)
there, other = upload(tensor), ok(cu.cuMemAlloc(count))
ok(cu.cuMemcpyDtoD(other, there, count))
print("ok" if np.array_equal(download(other, count, np.uint8), tensor) else "wrong")
