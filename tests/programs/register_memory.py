"""The codes of `cuMemHostRegister` and its relatives: prints a line for each case, to be compared with a native run."""

import ctypes
import mmap

from cu import cu, kernels, launch, ok, start, u32, u64

PAGE = 4096
context = start()
pages = mmap.mmap(-1, 16 * PAGE)
base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
device = int(ok(cu.cuMemAlloc(PAGE)))
pinned = int(ok(cu.cuMemHostAlloc(PAGE, 0)))


def show(what, result):
    code, *values = result if isinstance(result, tuple) else (result,)
    print(what, int(code), *(values if int(code) == 0 else ()))


def register(what, address, size, flags=0):
    show(f"register {what}", cu.cuMemHostRegister(address, size, flags))


def unregister(what, address):
    show(f"unregister {what}", cu.cuMemHostUnregister(address))


# Flags: PORTABLE, DEVICEMAP, IOMEMORY, READ_ONLY, one that does not exist, and two together.
for flags in (0, 1, 2, 3, 4, 8, 9, 12, 16, 1 << 31):
    register(f"flags {flags}", base, PAGE, flags)
    show(f"flags of {flags}", cu.cuMemHostGetFlags(base))
    code, place = cu.cuMemHostGetDevicePointer(base + 8, 0)
    print("device pointer", flags, int(code), int(code) == 0 and int(place) != 0)
    print("device pointer with flags", int(cu.cuMemHostGetDevicePointer(base, 1)[0]))
    unregister(f"flags {flags}", base)
    unregister(f"again {flags}", base)

# Ranges that cannot be registered.
register("null", 0, PAGE)
register("nothing", base, 0)
register("more than there is", base, 2**64 - 1)
register("memory of the device", device, PAGE)
register("page-locked memory", pinned, PAGE)
register("part of page-locked memory", pinned + 16, 16)
unregister("page-locked memory", pinned)
unregister("memory of the device", device)
unregister("null", 0)
unregister("unknown", base)

# Ranges that overlap, and ranges that only touch; no alignment is required.
register("middle", base + 4 * PAGE + 24, 3 * PAGE)
for what, start_at, size in (
    ("same", 4 * PAGE + 24, 3 * PAGE),
    ("inside", 5 * PAGE, PAGE),
    ("head", 4 * PAGE, 32),
    ("tail", 7 * PAGE, 64),
    ("around", 0, 16 * PAGE),
):
    register(what, base + start_at, size)
register("before", base + 4 * PAGE, 24)
register("behind", base + 7 * PAGE + 24, PAGE)
unregister("inside", base + 5 * PAGE)
show("free of registered", cu.cuMemFreeHost(base + 4 * PAGE + 24))
show("free of device's", cu.cuMemFreeHost(device))
show("free inside", cu.cuMemFreeHost(pinned + 8))
show("free of null", cu.cuMemFreeHost(0))
for what, at in (("before", 4 * PAGE), ("middle", 4 * PAGE + 24), ("behind", 7 * PAGE + 24)):
    unregister(what, base + at)
register("around now", base, 16 * PAGE)

# Queries about an address inside.
kinds = cu.CUpointer_attribute
for name in ("MEMORY_TYPE", "HOST_POINTER", "RANGE_START_ADDR", "RANGE_SIZE", "MAPPED", "IS_MANAGED", "DEVICE_ORDINAL"):
    code, value = cu.cuPointerGetAttribute(getattr(kinds, "CU_POINTER_ATTRIBUTE_" + name), base + 40)
    value = int(value) - base if name in ("HOST_POINTER", "RANGE_START_ADDR") else int(value)
    print(name, int(code), value)

for what, address, start_at in (("registered", base + 40, base), ("pinned", pinned + 8, pinned)):
    code, begin, size = cu.cuMemGetAddressRange(address)
    print("range of", what, int(code), int(begin) - start_at, size)

# In use: a kernel that takes its time, and a copy behind it that lands here.
functions = kernels()
stream = ok(cu.cuStreamCreate(1))
launch(functions["late_fill"], 1, 256, [u64(device), u32(PAGE // 4), u32(7), u64(50_000_000)], stream)
ok(cu.cuMemcpyDtoHAsync(base, device, PAGE, stream))
unregister("in use", base)
ok(cu.cuCtxSynchronize())
print("landed", ctypes.string_at(base, 4).hex())

# Registered in a context that is destroyed.
other = ok(cu.cuCtxCreate(None, 0, 0))
register("in a context of its own", base, PAGE)
gone = int(ok(cu.cuMemHostAlloc(PAGE, 0)))
ok(cu.cuCtxDestroy(other))
ok(cu.cuCtxSetCurrent(context))
unregister("of a context that is gone", base)
show("free of a context that is gone", cu.cuMemFreeHost(gone))
register("once more", base, PAGE)
unregister("once more", base)
show("free", cu.cuMemFreeHost(pinned))
show("free again", cu.cuMemFreeHost(pinned))
