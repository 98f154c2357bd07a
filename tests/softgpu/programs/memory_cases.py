"""Memory: what may be touched, what copies do, pools and virtual memory. Expected codes are CUDA's documented ones."""

from __future__ import annotations

import ctypes
import os
import struct

import numpy as np
from softcuda import (
    HEADER,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    alloc,
    code,
    function,
    get,
    i32,
    launch,
    main,
    new,
    ok,
    pinned,
    ptr,
    put,
    ref,
    size,
    start,
    u32,
    u64,
)

MIB = 1 << 20


def free_bytes() -> int:
    free, total = size(), size()
    ok("cuMemGetInfo_v2", ref(free), ref(total))
    return free.value


def copies_stay_inside_allocations() -> None:
    start()
    p, out = alloc(100), ctypes.create_string_buffer(200)
    ok("cuMemcpyDtoH_v2", out, u64(p), size(100))
    assert code("cuMemcpyDtoH_v2", out, u64(p), size(101)) == INVALID_VALUE
    assert code("cuMemcpyHtoD_v2", u64(p + 50), out, size(51)) == INVALID_VALUE
    assert code("cuMemsetD8_v2", u64(p), 1, size(101)) == INVALID_VALUE
    assert code("cuMemsetD32_v2", u64(p + 2), 1, size(1)) == INVALID_VALUE
    assert code("cuMemcpyDtoD_v2", u64(p), u64(p), size(1 << 63)) == INVALID_VALUE
    assert code("cuMemFree_v2", u64(p + 1)) == INVALID_VALUE
    ok("cuMemFree_v2", u64(p))
    assert code("cuMemFree_v2", u64(p)) == INVALID_VALUE
    assert code("cuMemcpyDtoH_v2", out, u64(p), size(1)) == INVALID_VALUE
    assert code("cuMemcpy", u64(p), u64(ctypes.addressof(out)), size(1)) == INVALID_VALUE


def memory_starts_as_zeros() -> None:
    start()
    for n in (1, 511, 4096, 3 * MIB + 77):
        p = alloc(n)
        ok("cuMemsetD8_v2", u64(p), 0xAB, size(n))
        ok("cuMemFree_v2", u64(p))
        again = alloc(n)
        assert get(again, n) == bytes(n)
        ok("cuMemFree_v2", u64(again))


def allocation_ends_at_the_devices_memory() -> None:
    start()
    before = free_bytes()
    assert before == 64 * MIB
    p = alloc(60 * MIB)
    assert free_bytes() == 4 * MIB
    assert code("cuMemAlloc_v2", ref(u64()), size(5 * MIB)) == OUT_OF_MEMORY
    q = alloc(4 * MIB)
    assert free_bytes() == 0
    for address in (p, q):
        ok("cuMemFree_v2", u64(address))
    assert free_bytes() == before


def a_destroyed_context_frees_its_memory() -> None:
    start()
    before = free_bytes()
    context = new("cuCtxCreate_v2", 0, 0)
    p = alloc(MIB)
    ok("cuCtxDestroy_v2", context)
    assert free_bytes() == before
    assert code("cuMemFree_v2", u64(p)) == INVALID_VALUE


def copies_of_planes_and_volumes() -> None:
    start()
    rng = np.random.default_rng(1)
    host = rng.integers(0, 255, (6, 8, 40), np.uint8)
    device, pitch = u64(), size()
    ok("cuMemAllocPitch_v2", ref(device), ref(pitch), size(40), size(48), 4)
    assert pitch.value % 512 == 0
    words = ctypes.c_size_t * 25
    # srcX, srcY, srcZ, LOD, type, host, device, array, reserved, pitch, height; the same for dst; width, height, depth
    up = words(3, 1, 2, 0, 1, host.ctypes.data, 0, 0, 0, 40, 8, 5, 2, 1, 0, 2, 0, device.value, 0, 0, pitch.value, 8)
    up[22], up[23], up[24] = 30, 5, 3
    ok("cuMemcpy3D_v2", up)
    back = np.frombuffer(get(device.value, pitch.value * 48), np.uint8).reshape(6, 8, pitch.value)
    expected = np.zeros_like(back)
    expected[1:4, 2:7, 5:35] = host[2:5, 1:6, 3:33]
    assert np.array_equal(back, expected)

    out = np.zeros((5, 50), np.uint8)
    plane = ctypes.c_size_t * 16
    down = plane(5, 10, 2, 0, device.value, 0, pitch.value, 1, 0, 1, out.ctypes.data, 0, 0, 50, 30, 4)
    ok("cuMemcpy2D_v2", down)
    expected_plane = np.zeros_like(out)
    expected_plane[0:4, 1:31] = back.reshape(48, -1)[10:14, 5:35]
    assert np.array_equal(out, expected_plane)
    down[15] = 400
    assert code("cuMemcpy2D_v2", down) == INVALID_VALUE


def addresses_tell_where_memory_is() -> None:
    start()
    p = alloc(1000)
    address, view = pinned(64)
    text = ctypes.create_string_buffer(b"x" * 64, 64)
    ok("cuMemcpy", u64(p), u64(ctypes.addressof(text)), size(64))
    ok("cuMemcpy", u64(address), u64(p), size(64))
    assert view.raw == b"x" * 64

    def attribute(which: int, of: int, kind: type = u64) -> int:
        value = new("cuPointerGetAttribute", which, u64(of), kind=kind)
        return int(value.value)

    assert attribute(2, p + 5, u32) == 2 and attribute(2, address, u32) == 1
    assert attribute(11, p + 5) == p and attribute(12, p + 5) == 1000
    assert attribute(3, address) == address and attribute(9, p, i32) == 0
    managed = ctypes.c_uint64(0xFFFFFFFFFFFFFFFF)
    ok("cuPointerGetAttribute", ref(managed), 8, u64(p))
    assert managed.value == 0xFFFFFFFF00000000, "a boolean attribute takes four bytes"
    mine = ctypes.create_string_buffer(10)
    assert code("cuPointerGetAttribute", ref(u32()), 2, u64(ctypes.addressof(mine))) == INVALID_VALUE
    kind, ordinal = u32(9), i32(9)
    names = (ctypes.c_int * 2)(2, 9)
    outs = (ptr * 2)(ctypes.addressof(kind), ctypes.addressof(ordinal))
    ok("cuPointerGetAttributes", 2, names, outs, u64(ctypes.addressof(mine)))
    assert (kind.value, ordinal.value) == (0, -2)


def registered_memory_is_reached_at_its_address() -> None:
    start()
    page = 4096
    mine = np.zeros(3 * page, np.uint8)
    ok("cuMemHostRegister_v2", ptr(mine.ctypes.data), size(mine.nbytes), 0)
    assert code("cuMemHostRegister_v2", ptr(mine.ctypes.data), size(page), 0) == 712
    device = new("cuMemHostGetDevicePointer_v2", ptr(mine.ctypes.data), 0, kind=u64)
    assert device.value == mine.ctypes.data
    ok("cuMemsetD8_v2", device, 7, size(mine.nbytes))
    ok("cuCtxSynchronize")
    assert (mine == 7).all()
    ok("cuMemHostUnregister", ptr(mine.ctypes.data))
    assert code("cuMemHostUnregister", ptr(mine.ctypes.data)) == 713


def pool_memory_comes_and_goes_in_stream_order() -> None:
    start()
    stream = new("cuStreamCreate", 1)
    pool = new("cuDeviceGetMemPool", 0)

    def used(which: int = 7) -> int:
        value = u64()
        ok("cuMemPoolGetAttribute", pool, which, ref(value))
        return int(value.value)

    for _ in range(20):  # 20 x 48 MiB through 64 MiB
        p = new("cuMemAllocAsync", size(48 * MIB), stream, kind=u64)
        ok("cuMemsetD8Async", p, 1, size(48 * MIB), stream)
        ok("cuMemFreeAsync", p, stream)
        assert code("cuMemFreeAsync", p, stream) == INVALID_VALUE
    ok("cuStreamSynchronize", stream)
    assert (used(), used(8)) == (0, 48 * MIB)
    p = new("cuMemAllocAsync", size(MIB), stream, kind=u64)
    assert used() == MIB
    ok("cuMemFree_v2", p)
    assert used() == 0
    assert code("cuMemAllocAsync", ref(u64()), size(65 * MIB), stream) == OUT_OF_MEMORY


def pools_of_ones_own() -> None:
    start()
    properties = (ctypes.c_uint32 * 22)(1, 0, 1, 0)  # pinned, no export, device 0
    pool = new("cuMemPoolCreate", properties)
    threshold = u64(12345)
    ok("cuMemPoolSetAttribute", pool, 4, ref(threshold))
    read = u64()
    ok("cuMemPoolGetAttribute", pool, 4, ref(read))
    assert read.value == 12345
    p = new("cuMemAllocFromPoolAsync", size(100), pool, None, kind=u64)
    owner = new("cuPointerGetAttribute", 17, p)
    assert owner.value == pool.value
    ok("cuDeviceSetMemPool", 0, pool)
    assert new("cuDeviceGetMemPool", 0).value == pool.value
    ok("cuMemPoolDestroy", pool)
    assert new("cuDeviceGetMemPool", 0).value == new("cuDeviceGetDefaultMemPool", 0).value
    put(p.value, b"abc")
    ok("cuMemFreeAsync", p, None)
    ok("cuCtxSynchronize")
    assert code("cuMemPoolDestroy", pool) == INVALID_VALUE
    assert code("cuMemPoolDestroy", new("cuDeviceGetDefaultMemPool", 0)) == INVALID_VALUE


def physical_memory_keeps_its_contents_wherever_it_is_mapped() -> None:
    start()
    properties = (ctypes.c_uint64 * 4)(1, 1, 0, 0)  # pinned, on device 0
    granularity = new("cuMemGetAllocationGranularity", properties, 0, kind=size).value
    assert granularity == 2 * MIB
    base = new("cuMemAddressReserve", size(8 * MIB), size(0), u64(0), u64(0), kind=u64).value
    before = free_bytes()
    memory = new("cuMemCreate", size(4 * MIB), properties, u64(0), kind=u64)
    assert free_bytes() == before - 4 * MIB
    access = (ctypes.c_uint32 * 3)(1, 0, 3)
    ok("cuMemMap", u64(base), size(4 * MIB), size(0), memory, u64(0))
    assert code("cuMemcpyHtoD_v2", u64(base), b"abcd", size(4)) == INVALID_VALUE, "no access yet"
    ok("cuMemSetAccess", u64(base), size(4 * MIB), access, size(1))
    put(base + 3 * MIB, b"abcd")
    ok("cuMemUnmap", u64(base), size(4 * MIB))
    assert code("cuMemcpyHtoD_v2", u64(base), b"abcd", size(4)) == INVALID_VALUE
    ok("cuMemMap", u64(base + 4 * MIB), size(2 * MIB), size(2 * MIB), memory, u64(0))
    ok("cuMemSetAccess", u64(base + 4 * MIB), size(2 * MIB), access, size(1))
    assert get(base + 5 * MIB, 4) == b"abcd"
    assert code("cuMemAddressFree", u64(base), size(8 * MIB)) == INVALID_VALUE, "still mapped"
    ok("cuMemRelease", memory)
    assert get(base + 5 * MIB, 4) == b"abcd"
    ok("cuMemUnmap", u64(base + 4 * MIB), size(2 * MIB))
    assert free_bytes() == before
    ok("cuMemAddressFree", u64(base), size(8 * MIB))
    assert code("cuMemMap", u64(base), size(2 * MIB), size(0), memory, u64(0)) == INVALID_VALUE
    assert code("cuMemCreate", ref(u64()), size(MIB), properties, u64(0)) == INVALID_VALUE
    assert code("cuMemExportToShareableHandle", ref(u64()), memory, 1, u64(0)) == INVALID_VALUE


def reserved_addresses_follow_the_hint_or_not() -> None:
    start()
    hint = 0x3456_0000_0000
    got = new("cuMemAddressReserve", size(64 * MIB), size(0), u64(hint), u64(0), kind=u64).value
    hostile = os.environ.get("REMOTEGPU_SOFTGPU_PROFILE") == "hostile"
    assert (got == hint) != hostile
    assert got % (2 * MIB) == 0
    other = new("cuMemAddressReserve", size(64 * MIB), size(0), u64(got), u64(0), kind=u64).value
    assert other != got, "taken already"


SAMPLE = (
    HEADER
    + """
.visible .entry sample(.param .u64 texture, .param .u64 at, .param .u64 out) {
    .reg .b64 %d<5>; .reg .b32 %t; .reg .f32 %f<6>;
    ld.param.u64 %d1, [texture]; ld.param.u64 %d2, [at]; ld.param.u64 %d3, [out]; mov.u32 %t, %tid.x;
    mul.wide.u32 %d4, %t, 4; add.u64 %d2, %d2, %d4; add.u64 %d3, %d3, %d4; ld.global.f32 %f1, [%d2];
    tex.1d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%d1, {%f1}]; st.global.f32 [%d3], %f2; ret; }
"""
)


def textures_are_clamped_however_far_outside() -> None:
    start()
    texels, border = (1.0, 2.0, 3.0), 9.0
    array = new("cuArrayCreate_v2", struct.pack("QQII", len(texels), 0, 0x20, 1))
    ok("cuMemcpyHtoA_v2", array, size(0), struct.pack("3f", *texels), size(12))
    resource = struct.pack("IxxxxQ", 0, array.value).ljust(144, b"\0")
    kernel, far = function(SAMPLE, "sample"), (4.0, 1e9, 1e20, 1.2e38, 3e38, float("inf"))
    at, out = alloc(64), alloc(64)
    coordinates = [*far, *(-x for x in far)]
    put(at, struct.pack(f"{len(coordinates)}f", *coordinates))
    for mode, low, high in [(1, texels[0], texels[-1]), (3, border, border)]:
        for linear in (0, 1):
            for flags in (0, 2):
                description = struct.pack("7I3f4f12x", mode, mode, mode, linear, flags, 0, 0, 0, 0, 0, border, 0, 0, 0)
                texture = new("cuTexObjectCreate", resource, description.ljust(104, b"\0"), None, kind=u64)
                assert launch(kernel, [texture, u64(at), u64(out)], 1, len(coordinates)) == 0
                found = struct.unpack(f"{len(coordinates)}f", get(out, 4 * len(coordinates)))
                expected = (high,) * len(far) + (low,) * len(far)
                assert found == expected, (mode, linear, flags, found)


if __name__ == "__main__":
    main(globals())
