"""Prints as JSON what each of many wrong launches answers: its own code, and that of the synchronise after it.

What a driver refuses at the call must leave nothing behind. Launches that are right stand between them.
"""

import ctypes
import json
import struct

driver = ctypes.CDLL("libcuda.so.1")
ptr, u32, u64, by = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.byref
PRIORITY, CLUSTER, COOPERATIVE, COMPLETION, NODE = 8, 4, 2, 12, 13
DYNAMIC_SHARED, DISABLE_TIMING = 8, 2

PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 at, .param .u32 n) {
    .reg .b64 %d1; .reg .b32 %r<3>;
    ld.param.u64 %d1, [at]; ld.param.u32 %r1, [n];
    atom.global.add.u32 %r2, [%d1], %r1; ret;
}
.visible .entry nothing() { ret; }
.visible .entry required() .reqntid 8, 4 { ret; }
.visible .entry bounded() .maxntid 64, 1, 1 { ret; }
"""
REFUSED = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry refused(.param .align 64 .b8 map[128]) {
    .reg .b64 %d1; .reg .b32 %r<4>; .shared .align 128 .b8 box[512]; .shared .align 8 .b64 barrier;
    mov.b64 %d1, map; mov.u32 %r1, box; mov.u32 %r2, barrier; mov.u32 %r3, 0;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1, {%r3, %r3}], [%r2];
    ret;
}
"""


class Attribute(ctypes.Structure):
    _fields_ = (("id", u32), ("pad", u32), ("value", ctypes.c_byte * 64))


class Config(ctypes.Structure):
    _fields_ = (
        *(("grid", u32 * 3), ("block", u32 * 3), ("shared", u32)),
        *(("stream", ptr), ("attributes", ptr), ("count", u32)),
    )


def made(name, *arguments, kind=ptr):
    result = kind()
    code = getattr(driver, name)(by(result), *arguments)
    assert code == 0, f"{name}: {code}"
    return result


def attribute(number, *words):
    value = struct.pack(f"<{len(words)}I", *words).ljust(64, b"\0")
    return Attribute(number, 0, (ctypes.c_byte * 64).from_buffer_copy(value))


def event_attribute(event):
    return attribute(COMPLETION, event.value & 0xFFFFFFFF, event.value >> 32)


assert driver.cuInit(0) == 0
context = made("cuDevicePrimaryCtxRetain", 0)
driver.cuCtxSetCurrent(context)
memory = made("cuMemAlloc_v2", u64(4096), kind=u64)
driver.cuMemsetD8_v2(memory, 0, u64(4096))
module = made("cuModuleLoadData", PTX)
add, nothing, required, bounded = (
    made("cuModuleGetFunction", module, name) for name in (b"add", b"nothing", b"required", b"bounded")
)
stream = made("cuStreamCreate", 1)
library = made("cuLibraryLoadData", PTX, None, None, 0, None, None, 0)
refused = made("cuLibraryGetKernel", made("cuLibraryLoadData", REFUSED, None, None, 0, None, None, 0), b"refused")
timed, untimed = made("cuEventCreate", 0), made("cuEventCreate", DISABLE_TIMING)
unloaded = made("cuModuleLoadData", PTX)
stale = made("cuModuleGetFunction", unloaded, b"nothing")
driver.cuModuleUnload(unloaded)
gone = made("cuStreamCreate", 0)
driver.cuStreamDestroy_v2(gone)

# Another context, with a stream, an event and a function of its own.
other = made("cuCtxCreate_v2", 0, 0)
foreign_stream, foreign_event = made("cuStreamCreate", 0), made("cuEventCreate", DISABLE_TIMING)
foreign = made("cuModuleGetFunction", made("cuModuleLoadData", PTX), b"nothing")
driver.cuCtxPopCurrent_v2(by(ptr()))

values = (u64(memory.value), u32(1))
EACH = (ptr * 2)(*(ctypes.addressof(value) for value in values))
PACKED = ctypes.create_string_buffer(struct.pack("<QI", memory.value, 1), 12)
SIZE = ctypes.c_size_t()
BOX = ctypes.create_string_buffer(128)
MAP = (ptr * 1)(ctypes.addressof(BOX))
found = {}


def extra(*tags):
    return (ptr * len(tags))(*tags)


def packed(size):
    """The list that passes a buffer of this size."""
    SIZE.value = size
    return extra(1, ctypes.addressof(PACKED), 2, ctypes.addressof(SIZE), 0)


def note(name, code):
    found[name] = [code, driver.cuCtxSynchronize()]


def launch(name, function=nothing, grid=(1, 1, 1), block=(1, 1, 1), shared=0, on=None, each=None, more=None):
    note(name, driver.cuLaunchKernel(function, *grid, *block, shared, on, each, more))


def launch_with(name, *attributes, function=nothing, grid=(4, 1, 1), block=(1, 1, 1), on=None, count=None):
    array = (Attribute * len(attributes))(*attributes) if attributes else None
    config = Config(
        (u32 * 3)(*grid), (u32 * 3)(*block), 0, on, array and ctypes.addressof(array), count or len(attributes)
    )
    note(name, driver.cuLaunchKernelEx(by(config), function, None, None))


launch("right")
launch("right, with parameters", add, each=EACH)

launch("no blocks", grid=(0, 1, 1))
launch("too many blocks", grid=(1, 65536, 1))
launch("too many slices of blocks", grid=(1, 1, 65536))
launch("no threads", block=(1, 0, 1))
launch("too many threads", block=(1025, 1, 1))
launch("too many threads together", block=(32, 32, 2))
launch("too many slices of threads", block=(1, 1, 65))
launch("more threads than bounds allow", bounded, block=(65, 1, 1))
launch("as many threads as bounds allow", bounded, block=(64, 1, 1))
launch("the block required", required, block=(8, 4, 1))
launch("another block than required", required, block=(32, 1, 1))
launch("a smaller block than required", required, block=(8, 1, 1))
launch("a larger block than required", required, block=(8, 8, 1))
launch("more shared memory than by default", shared=(48 << 10) + 1)
note("asking for 64 KiB", driver.cuFuncSetAttribute(nothing, DYNAMIC_SHARED, 64 << 10))
launch("as much as asked for", shared=64 << 10)
launch("more shared memory than asked for", shared=(64 << 10) + 1)
launch("too much shared memory and too many threads", bounded, block=(65, 1, 1), shared=1 << 20)

launch("no function", ptr(0))
launch("no such function", ptr(0x123456))
launch("a function of an unloaded module", stale)
launch("a stream that was destroyed", on=gone)
launch("no such stream", on=ptr(0x123456))
launch("a stream of another context", on=foreign_stream)
launch("a function of another context", foreign)
launch("function and stream of another context", foreign, on=foreign_stream)
kernel = made("cuLibraryGetKernel", library, b"nothing")
launch("a kernel", kernel)
launch("a kernel, in a stream of another context", kernel, on=foreign_stream)
launch("a kernel that the GPU does not execute", refused, each=MAP)
launch("and with no threads", refused, each=MAP, block=(0, 1, 1))

launch("no parameters", add)
launch("parameters twice", add, each=EACH, more=packed(12))
launch("a missing parameter", add, each=(ptr * 2)(EACH[0], None))
launch("all parameters in a buffer", add, more=packed(12))
launch("a larger buffer", add, more=packed(100))
launch("a buffer without the last parameter", add, more=packed(8))
launch("a buffer without its size", add, more=extra(1, ctypes.addressof(PACKED), 0))
launch("a size without a buffer", add, more=extra(2, ctypes.addressof(SIZE), 0))
launch("an unknown way", add, more=extra(9, 0, 0))
launch("a way that is not needed", nothing, more=extra(9, 0, 0))

note("no configuration", driver.cuLaunchKernelEx(None, nothing, None, None))
launch_with("no attributes, but a number of them", count=1)
launch_with("a priority", attribute(PRIORITY, 0))
launch_with("clusters of one block", attribute(CLUSTER, 1, 1, 1))
launch_with("clusters", attribute(CLUSTER, 2, 1, 1))
launch_with("clusters of no blocks", attribute(CLUSTER, 0, 1, 1))
launch_with("clusters, and no blocks", attribute(CLUSTER, 2, 1, 1), grid=(0, 1, 1))
launch_with("cooperating", attribute(COOPERATIVE, 1))
launch_with("not cooperating", attribute(COOPERATIVE, 0))
launch_with("cooperating, and no blocks", attribute(COOPERATIVE, 1), grid=(0, 1, 1))
note("cuLaunchCooperativeKernel", driver.cuLaunchCooperativeKernel(nothing, 1, 1, 1, 1, 1, 1, 0, None, None))
note(
    "cuLaunchCooperativeKernel of nothing",
    driver.cuLaunchCooperativeKernel(ptr(0), 1, 1, 1, 1, 1, 1, 0, None, None),
)
launch_with("a node of a graph", attribute(NODE, 1))
launch_with("an event", event_attribute(untimed))
launch_with("an event with timing", event_attribute(timed))
launch_with("an event of another context", event_attribute(foreign_event))
launch_with("no such event", attribute(COMPLETION, 0x123456, 0))

driver.cuCtxSetCurrent(None)
config = Config((u32 * 3)(1, 1, 1), (u32 * 3)(1, 1, 1), 0, None, None, 0)
bare = [
    driver.cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, None, None, None),
    driver.cuLaunchKernelEx(by(config), nothing, None, None),
]
driver.cuCtxSetCurrent(context)
note("without a context", bare[0])
note("with a configuration, and without a context", bare[1])

launch("right at the end", add, each=EACH)
launch("right in a stream", nothing, on=stream)
word = u32()
driver.cuMemcpyDtoH_v2(by(word), memory, u64(4))
found["added"] = [word.value, 0]
print(json.dumps(found))
