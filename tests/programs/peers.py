"""Kernels of one device reach the memory of another, as far as the program allowed it. Prints "reached"; with "apart"
checks that devices of two appliances do not, with "ended" that what is taken back is out of reach."""

import sys

import numpy as np
from cu import access, code_of, cu, download, kernels, launch, location, ok, u32, u64, upload

COUNT = 300_000
ENABLED, NOT_ENABLED, UNSUPPORTED, INVALID_CONTEXT, ILLEGAL_ADDRESS = 704, 705, 217, 201, 700
INVALID_VALUE, INVALID_DEVICE = 1, 101
P2P = cu.CUdevice_P2PAttribute
READWRITE = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
NONE = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
ONES = np.ones(COUNT, np.float32)


class Side:
    def __init__(self, ordinal):
        self.ordinal = ordinal
        self.context = ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(ordinal))))
        self.enter()
        self.add = kernels()["add"]

    def enter(self):
        ok(cu.cuCtxSetCurrent(self.context))

    def add_one(self, source, target):
        """target = source + 1, by a kernel of this device."""
        self.enter()
        ones = upload(ONES)
        launch(self.add, -(-COUNT // 256), 256, [u64(int(source)), u64(int(ones)), u64(int(target)), u32(COUNT)])
        return cu.cuCtxSynchronize()


def values(pointer):
    return download(pointer, COUNT, np.float32)


ok(cu.cuInit(0))
assert ok(cu.cuDeviceGetCount()) == 2
first, second = Side(0), Side(1)
together = [ok(cu.cuDeviceCanAccessPeer(0, 1)), ok(cu.cuDeviceCanAccessPeer(1, 0)), ok(cu.cuDeviceCanAccessPeer(1, 1))]
supported = ok(cu.cuDeviceGetP2PAttribute(P2P.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1))
assert supported == together[0]
second.enter()
assert code_of(cu.cuCtxDisablePeerAccess, first.context) == NOT_ENABLED
first.enter()
theirs = upload(np.arange(COUNT, dtype=np.float32))

if sys.argv[1:] == ["apart"]:
    assert together == [0, 0, 0], together
    assert code_of(cu.cuCtxEnablePeerAccess, second.context, 0) == UNSUPPORTED
    pool = ok(cu.cuDeviceGetDefaultMemPool(0))
    assert code_of(cu.cuMemPoolSetAccess, pool, [access(1, READWRITE)], 1) == INVALID_DEVICE
    print("reached")
    sys.exit()

assert together == [1, 1, 0], together
second.enter()
own = upload(np.zeros(COUNT, np.float32))
assert code_of(cu.cuCtxEnablePeerAccess, first.context, 1) == INVALID_VALUE
assert code_of(cu.cuCtxEnablePeerAccess, second.context, 0) == INVALID_CONTEXT
ok(cu.cuCtxEnablePeerAccess(first.context, 0))
assert code_of(cu.cuCtxEnablePeerAccess, first.context, 0) == ENABLED
ok(second.add_one(theirs, own))
assert np.array_equal(values(own), np.arange(COUNT) + 1)

if sys.argv[1:] == ["ended"]:
    ok(cu.cuCtxDisablePeerAccess(first.context))
    assert code_of(cu.cuCtxDisablePeerAccess, first.context) == NOT_ENABLED
    assert code_of(second.add_one, theirs, own) == ILLEGAL_ADDRESS
    print("reached")
    sys.exit()

# What is allocated later is reached as well, and written: more than one slab of it, each behind what it is made from.
first.enter()
for turn in range(5):
    first.enter()
    later = ok(cu.cuMemAlloc(64 << 20))
    ok(second.add_one(own, later))
    first.enter()
    assert np.array_equal(values(later), np.arange(COUNT) + 2 + turn)
    ok(cu.cuMemcpyDtoD(own, later, COUNT * 4))

# A pool's memory is reached only when the pool says so.
pool = ok(cu.cuDeviceGetDefaultMemPool(0))
assert ok(cu.cuMemPoolGetAccess(pool, location(1))) == NONE
ok(cu.cuMemPoolSetAccess(pool, [access(1, READWRITE)], 1))
assert ok(cu.cuMemPoolGetAccess(pool, location(1))) == READWRITE
assert code_of(cu.cuMemPoolSetAccess, pool, [access(0, NONE)], 1) == INVALID_DEVICE
first.enter()
pooled = ok(cu.cuMemAllocAsync(COUNT * 4, 0))
ok(cu.cuCtxSynchronize())
ok(second.add_one(theirs, pooled))
assert np.array_equal(values(pooled), np.arange(COUNT) + 1)
second.enter()
ok(cu.cuMemPoolSetAccess(pool, [access(1, NONE)], 1))
assert ok(cu.cuMemPoolGetAccess(pool, location(1))) == NONE

# Memory that the program maps by itself, for both devices at once.
first.enter()
properties = cu.CUmemAllocationProp()
properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
properties.location = location(0)
size = ok(cu.cuMemGetAllocationGranularity(properties, cu.CUmemAllocationGranularity_flags(0)))
handle = ok(cu.cuMemCreate(size, properties, 0))
address = ok(cu.cuMemAddressReserve(size, 0, 0, 0))
ok(cu.cuMemMap(address, size, 0, handle, 0))
ok(cu.cuMemSetAccess(address, size, [access(0, READWRITE), access(1, READWRITE)], 2))
assert [int(ok(cu.cuMemGetAccess(location(i), address))) for i in range(2)] == [int(READWRITE)] * 2
ok(second.add_one(theirs, address))
assert np.array_equal(values(address), np.arange(COUNT) + 1)
where = ok(cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address))
assert int(where) == 0
ok(cu.cuMemSetAccess(address, size, [access(1, NONE)], 1))
assert int(ok(cu.cuMemGetAccess(location(1), address))) == int(NONE)
ok(cu.cuMemUnmap(address, size))
ok(cu.cuMemRelease(handle))
ok(cu.cuMemAddressFree(address, size))
second.enter()
ok(cu.cuCtxDisablePeerAccess(first.context))
print("reached")
