"""Asks for the device pointers of a small piece of page-locked memory and of one of so many MiB; prints both codes."""

import sys

from cu import code_of, cu, ok, start

start()
for size in (4096, int(sys.argv[1]) << 20):
    print(code_of(cu.cuMemHostGetDevicePointer, ok(cu.cuMemHostAlloc(size, 0)), 0))
