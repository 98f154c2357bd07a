"""The code of cuInit, once more for each line of the input; then the number of devices."""

import sys

from cuda.bindings import driver as cu

print(int(cu.cuInit(0)[0]), flush=True)
for _ in sys.stdin:
    print(int(cu.cuInit(0)[0]), flush=True)
print(cu.cuDeviceGetCount()[1])
