"""Prints what a program sees of primary contexts, with flags, active or not, and a sum that it computes there."""

import ctypes

from cu import cu, ok

ok(cu.cuInit(0))
device = ok(cu.cuDeviceGet(0))


def state() -> list[int]:
    return [int(value) for value in ok(cu.cuDevicePrimaryCtxGetState(device))]


print(state())
for flags in (0, 4, 1):
    ok(cu.cuDevicePrimaryCtxSetFlags(device, flags))
    ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(device))))
    memory, host = ok(cu.cuMemAlloc(1 << 20)), (ctypes.c_uint8 * (1 << 20))()
    ok(cu.cuMemsetD8(memory, flags + 1, 1 << 20))
    ok(cu.cuMemcpyDtoH(host, memory, 1 << 20))
    print(state(), int(ok(cu.cuCtxGetFlags())), sum(host))
    ok(cu.cuDevicePrimaryCtxRelease(device))
    print(state())
