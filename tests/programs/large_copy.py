"""Copies so many MiB to the device by one call, and back in pieces: `same` and the bits of the sum, or `different`.

What is copied repeats itself in the machine's memory after a prime number of pages, so that it takes little of it, and
a piece that lands at any other place is seen. Between the two prints `copied` and waits for a line.
"""

import ctypes
import hashlib
import mmap
import os
import sys

import numpy as np
from cu import cu, ok, start

PAGES = 16411  # a prime; 64 MiB
PIECE = 64 << 20
MAP_FIXED, MAP_SHARED, PROT_READ, PROT_NONE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE = 16, 1, 1, 0, 2, 32, 0x4000

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]


def map_at(address, size, protection, flags, file):
    found = libc.mmap(address, size, protection, flags, file, 0)
    assert found not in {None, ctypes.c_void_p(-1).value}, os.strerror(ctypes.get_errno())
    return found


def repeated(total):
    """The address of so many bytes, in which the same pages come again and again; and these pages."""
    file = os.memfd_create("pattern")
    length = PAGES * mmap.PAGESIZE
    os.ftruncate(file, length)
    pages = mmap.mmap(file, length)
    np.frombuffer(pages, np.uint64)[:] = np.random.default_rng(20261126).integers(
        1 << 63, size=length // 8, dtype=np.uint64
    )
    address = map_at(None, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1)
    for offset in range(0, total, length):
        map_at(address + offset, min(length, total - offset), PROT_READ, MAP_SHARED | MAP_FIXED, file)
    return address, bytes(pages)


total = int(sys.argv[1]) << 20
start()
source, pattern = repeated(total)
device = ok(cu.cuMemAlloc(total))
ok(cu.cuMemcpyHtoD(device, source, total))
ok(cu.cuCtxSynchronize())
print("copied", flush=True)
sys.stdin.readline()
sent, received, back = hashlib.sha256(), hashlib.sha256(), np.empty(PIECE, np.uint8)
for offset in range(0, total, PIECE):
    size = min(PIECE, total - offset)
    begin = offset % len(pattern)
    sent.update((pattern[begin:] + pattern)[:size])
    ok(cu.cuMemcpyDtoH(back, int(device) + offset, size))
    received.update(back[:size])
print("same" if sent.digest() == received.digest() else "different", received.hexdigest()[:16], flush=True)
sys.stdin.readline()
