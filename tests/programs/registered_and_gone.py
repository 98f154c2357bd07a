"""Registers memory for kernels, uses it, and takes it away without a word; then computes with other memory. The first
argument says how it goes: `unmapped`, `protected`, `read_only`, `page`, one page of it unmapped, `remapped`, with other
memory in its place, or `moved` elsewhere; a second one what is under way then: a `kernel` that writes it, or a `copy`
from it or `back` to it."""

import ctypes
import mmap
import sys

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u32, u64, upload

PAGES, DEVICEMAP, FLAGS, FIXED, MAY_MOVE = 4, 2, 0x22, 0x10, 3
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mremap.restype = ctypes.c_void_p
start()
functions = kernels()
increment, late_fill = functions["increment"], functions["late_fill"]
size = PAGES * mmap.PAGESIZE
address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, FLAGS, -1, 0)
words = np.frombuffer((ctypes.c_char * size).from_address(address), np.uint32)
words[:] = 5
ok(cu.cuMemHostRegister(address, size, DEVICEMAP))
device = int(ok(cu.cuMemHostGetDevicePointer(address, 0)))
launch(increment, 1, 1, [u64(device)])
ok(cu.cuCtxSynchronize())
assert words[0] == 6 and (words[1:] == 5).all()
del words

LATE = 200_000_000
target = upload(np.zeros(size // 4, np.uint32))
match sys.argv[2:]:
    case ["kernel"]:
        launch(late_fill, 1, 64, [u64(device), u32(size // 4), u32(7), u64(LATE)])
    case [way]:
        launch(late_fill, 1, 1, [u64(int(target)), u32(1), u32(7), u64(LATE)])
        copy = {"copy": cu.cuMemcpyHtoDAsync, "back": cu.cuMemcpyDtoHAsync}[way]
        ok(copy(*((target, address) if way == "copy" else (address, target)), size, 0))

at, whole = ctypes.c_void_p(address), ctypes.c_size_t(size)
page = ctypes.c_size_t(mmap.PAGESIZE)
elsewhere = ctypes.c_void_p(libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, FLAGS, -1, 0))
done = {
    "unmapped": lambda: libc.munmap(at, whole),
    "protected": lambda: libc.mprotect(at, whole, 0),
    "read_only": lambda: libc.mprotect(at, whole, mmap.PROT_READ),
    "page": lambda: libc.munmap(ctypes.c_void_p(address + mmap.PAGESIZE), page),
    "remapped": lambda: libc.mmap(at, whole, mmap.PROT_READ | mmap.PROT_WRITE, FLAGS | FIXED, -1, 0) - address,
    "moved": lambda: libc.mremap(at, whole, whole, MAY_MOVE, elsewhere) - elsewhere.value,
}[sys.argv[1]]()
assert done == 0
other = upload(np.zeros(1, np.uint32))
for turn in range(3):
    launch(increment, 1, 1, [u64(int(other))])
    ok(cu.cuCtxSynchronize())
    assert download(other, 1)[0] == turn + 1
ok(cu.cuMemHostUnregister(address))
print("ok")
