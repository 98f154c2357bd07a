"""Prints "ready"; for a line on standard input gives memory back and puts more at the same addresses, by `cuMemAlloc`
and by mapping, prints "replaced", and for another line compares it and prints "ok"."""

import numpy as np
from cu import cu, download, ok, on_device, start, upload

MIB = 1 << 20
start()
properties, access = on_device()


def mapped(mib, number):
    memory = ok(cu.cuMemCreate(mib * MIB, properties, 0))
    ok(cu.cuMemMap(area, mib * MIB, 0, memory, 0))
    ok(cu.cuMemSetAccess(area, mib * MIB, [access], 1))
    ok(cu.cuMemsetD32(area, number, mib * MIB // 4))
    return memory


def allocated(mib, number):
    return upload(np.full(mib * MIB // 4, number, np.uint32))


def check(address, mib, number):
    assert np.all(download(address, mib * MIB // 4) == number), f"{mib} MiB"


# It lies before the others, and is sent before them.
first = allocated(160, 1)
area = int(ok(cu.cuMemAddressReserve(64 * MIB, 0, 0, 0)))
small = mapped(16, 2)
few = allocated(24, 3)
ok(cu.cuCtxSynchronize())
assert int(first) < area and int(first) < int(few)
print("ready", flush=True)
input()
ok(cu.cuMemUnmap(area, 16 * MIB))
ok(cu.cuMemRelease(small))
mapped(48, 4)
ok(cu.cuMemFree(few))
many = allocated(56, 5)
assert int(many) == int(few)
ok(cu.cuCtxSynchronize())
print("replaced", flush=True)
input()
check(first, 160, 1)
check(area, 48, 4)
check(many, 56, 5)
print("ok", flush=True)
