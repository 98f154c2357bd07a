"""Fills and copies on each kind of memory: prints code and bytes for each function and kinds of its operands.

The expected output is that of the same program natively.
"""

import ctypes
import hashlib
import itertools
import mmap
import sys

cuda = ctypes.CDLL("libcuda.so.1")
c_ptr, c_size, c_u32, c_u64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint64
SIZE = 4096
HOST, DEVICE, UNIFIED = 1, 2, 4
ASYNC = "Async"


def call(name, *arguments):
    return getattr(cuda, name)(*arguments)


def ok(name, *arguments):
    code = call(name, *arguments)
    assert code == 0, (name, code)


PLACE = [("MemoryType", c_u32), ("Host", c_u64), ("Device", c_u64), ("Array", c_u64)]
SIDE_2D = [("XInBytes", c_size), ("Y", c_size), *PLACE, ("Pitch", c_size)]
SIDE_3D = [*((name, c_size) for name in ("XInBytes", "Y", "Z", "LOD")), *PLACE, ("Context", c_u64)]
SIDE_3D += [("Pitch", c_size), ("Height", c_size)]
EXTENT = [("WidthInBytes", c_size), ("Height", c_size), ("Depth", c_size)]


def both(side):
    return [(end + name, kind) for end in ("src", "dst") for name, kind in side]


class Box2(ctypes.Structure):
    _fields_ = [*both(SIDE_2D), *EXTENT[:2]]


class Box3(ctypes.Structure):
    _fields_ = [*both(SIDE_3D), *EXTENT]


ok("cuInit", 0)
context, stream = c_u64(), c_u64()
ok("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
ok("cuCtxSetCurrent", context)
ok("cuStreamCreate", ctypes.byref(stream), 1)


def device_memory():
    address = c_u64()
    ok("cuMemAlloc_v2", ctypes.byref(address), c_size(SIZE))
    return address.value


def page_locked(flags):
    address = c_u64()
    ok("cuMemHostAlloc", ctypes.byref(address), c_size(SIZE), flags)
    return address.value


def pageable():
    """The end of the range is not the end of the mapping, so that nothing beyond it is touched by accident."""
    pages = mmap.mmap(-1, 4 * SIZE)
    kept.append(pages)
    return ctypes.addressof(ctypes.c_char.from_buffer(pages))


def registered(flags):
    address = pageable()
    ok("cuMemHostRegister_v2", c_ptr(address), c_size(SIZE), flags)
    return address


kept = []
KINDS = {
    "device": device_memory,
    "pageable": pageable,
    "pinned": lambda: page_locked(0),
    "portable": lambda: page_locked(1),
    "mapped": lambda: page_locked(2),
    "registered": lambda: registered(0),
    "registered+mapped": lambda: registered(2),
}
memory = {kind: (make(), make()) for kind, make in KINDS.items()}


def put(kind, address, data):
    if kind == "device":
        ok("cuMemcpyHtoD_v2", c_u64(address), data, c_size(SIZE))
    else:
        ctypes.memmove(address, data, SIZE)


def get(kind, address):
    if kind == "device":
        data = ctypes.create_string_buffer(SIZE)
        ok("cuMemcpyDtoH_v2", data, c_u64(address), c_size(SIZE))
        return data.raw
    return ctypes.string_at(address, SIZE)


def report(what, code, kind, address, settle=True):
    """The bytes after a wait, or at once where the function says that it is complete."""
    if settle:
        ok("cuCtxSynchronize")
    print(what, code, hashlib.sha256(get(kind, address)).hexdigest()[:16])


BLANK, SOURCE = bytes([0x55]) * SIZE, bytes(i * 7 & 0xFF for i in range(SIZE))
VALUES = {"8": ctypes.c_uint8, "16": ctypes.c_uint16, "32": c_u32}


def fills():
    # The case's name, its offset in bytes, elements, rows, pitch in bytes.
    linear = [("whole", 0, 64, 0, 0), ("part", 12, 100, 0, 0), ("beyond", SIZE - 8, 64, 0, 0), ("odd", 1, 8, 0, 0)]
    linear += [("none", 0, 0, 0, 0), ("end", SIZE - 4, 1, 0, 0)]
    boxes = [("rows", 8, 5, 3, 64), ("beyond", SIZE - 128, 5, 3, 64), ("one", 4, 5, 1, 3), ("narrow", 0, 9, 2, 8)]
    boxes += [("odd pitch", 0, 4, 2, 67), ("none", 0, 5, 0, 64), ("odd", 3, 5, 2, 64)]
    for kind, (bits, value) in itertools.product(KINDS, VALUES.items()):
        address = memory[kind][0]
        for dims, late in itertools.product(("", "2D"), ("", ASYNC)):
            for own_stream in ("", "_ptsz" if late else "_ptds"):
                name = f"cuMemsetD{dims}{bits}{late or '_v2'}{own_stream}"
                for what, offset, count, rows, pitch in boxes if dims else linear:
                    put(kind, address, BLANK)
                    to = c_u64(address + offset)
                    size = [c_size(count), c_size(rows)] if dims else [c_size(count)]
                    first = [to, c_size(pitch)] if dims else [to]
                    code = call(name, *first, value(0xA1B2C3D4 & (2 ** int(bits) - 1)), *size, *([stream] * bool(late)))
                    # A fill of the program's memory is complete when a function without Async returns.
                    report(f"{name} {kind} {what}", code, kind, address, settle=bool(late))


def linear_copies():
    names = ["cuMemcpy", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoD_v2", "cuMemcpyPeer"]
    spans = [("inside", 16, 300), ("beyond", SIZE - 16, 64), ("none", 0, 0)]
    for to_kind, from_kind in itertools.product(KINDS, KINDS):
        to, source = memory[to_kind][0], memory[from_kind][1]
        for name, late in itertools.product(names, ("", ASYNC)):
            base = name.replace("_v2", "") + late + ("_v2" if name.endswith("_v2") else "")
            for symbol in (base, base + ("_ptsz" if late else "_ptds")):
                for what, offset, size in spans:
                    put(to_kind, to, BLANK)
                    put(from_kind, source, SOURCE)
                    ends = [c_u64(to + offset), c_u64(source + offset)]
                    if "Peer" in name:
                        ends = [ends[0], context, ends[1], context]
                    code = call(symbol, *ends, c_size(size), *([stream] * bool(late)))
                    host = to_kind != "device" and not late
                    report(f"{symbol} {to_kind} {from_kind} {what}", code, to_kind, to, settle=not host)


def boxed_copies():
    names = {"cuMemcpy2D_v2": Box2, "cuMemcpy2DUnaligned_v2": Box2, "cuMemcpy2DAsync_v2": Box2}
    names |= {"cuMemcpy3D_v2": Box3, "cuMemcpy3DAsync_v2": Box3, "cuMemcpy3DPeer": Box3, "cuMemcpy3DPeerAsync": Box3}
    types = list(itertools.product((HOST, DEVICE, UNIFIED), repeat=2))
    for to_kind, from_kind in itertools.product(KINDS, KINDS):
        to, source = memory[to_kind][0], memory[from_kind][1]
        for (name, form), (to_type, from_type) in itertools.product(names.items(), types):
            put(to_kind, to, BLANK)
            put(from_kind, source, SOURCE)
            box = form(WidthInBytes=20, Height=3)
            for end, place, address in (("dst", to_type, to), ("src", from_type, source)):
                setattr(box, end + "MemoryType", place)
                setattr(box, end + ("Host" if place == HOST else "Device"), address)
                setattr(box, end + "XInBytes", 4)
                setattr(box, end + "Y", 1)
                setattr(box, end + "Pitch", 40 if end == "dst" else 32)
            if form is Box3:
                box.Depth, box.dstHeight, box.srcHeight, box.srcZ = 2, 5, 4, 1
                if "Peer" in name:
                    box.dstContext = box.srcContext = context.value
            code = call(name, ctypes.byref(box), *([stream] * (ASYNC in name)))
            report(f"{name} {to_kind}:{to_type} {from_kind}:{from_type}", code, to_kind, to)


def order():
    """A fill keeps its place in the stream: after the bytes that land before it, before those read after."""
    for kind, late in itertools.product([k for k in KINDS if k not in ("device", "pageable")], ("", ASYNC)):
        page, first, last = memory[kind][0], memory["device"][0], memory["device"][1]
        put(kind, page, SOURCE)
        put("device", first, SOURCE)
        queue = c_u64() if not late else stream
        ok("cuMemsetD8Async", c_u64(first), ctypes.c_uint8(1), c_size(SIZE), queue)
        ok("cuMemcpyDtoHAsync_v2", c_ptr(page), c_u64(first), c_size(SIZE), queue)
        if late:
            ok("cuMemsetD16Async", c_u64(page + 8), ctypes.c_uint16(0x203), c_size(100), queue)
        else:
            ok("cuMemsetD16_v2", c_u64(page + 8), ctypes.c_uint16(0x203), c_size(100))
        ok("cuMemcpyHtoDAsync_v2", c_u64(last), c_ptr(page), c_size(SIZE), queue)
        ok("cuMemsetD8Async", c_u64(page), ctypes.c_uint8(9), c_size(4), queue)
        ok("cuStreamSynchronize", queue)
        report(f"order {late} {kind}", 0, kind, page, settle=False)
        report(f"order {late} {kind} device", 0, "device", last)


parts = {"fills": fills, "linear": linear_copies, "boxed": boxed_copies, "order": order}
for part in sys.argv[1:] or parts:
    parts[part]()
