"""Modules, libraries, linking, and what is known of kernels."""

from __future__ import annotations

import ctypes

from softcuda import (
    HEADER,
    INVALID_HANDLE,
    INVALID_PTX,
    INVALID_VALUE,
    NOT_FOUND,
    alloc,
    code,
    function,
    get,
    i32,
    launch,
    main,
    new,
    ok,
    ptr,
    put,
    ref,
    size,
    start,
    u32,
    u64,
)

MAX_THREADS, NUM_REGS = 0, 4
JIT_MAX_REGISTERS, JIT_THREADS_PER_BLOCK = 0, 1
PTX = (
    HEADER
    + """
.visible .global .align 4 .u32 counter = 41;
.visible .const .align 8 .b8 table[16] = {1, 2, 3, 4, 5, 6, 7, 8};
.visible .entry bump(.param .u8 unused, .param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %a;
    .shared .align 4 .b8 scratch[512];
    ld.global.u32 %r1, [counter];
    add.u32 %r1, %r1, 1;
    st.global.u32 [counter], %r1;
    ld.param.u64 %a, [out];
    st.global.u32 [%a], %r1;
    ret;
}
.visible .entry other() .maxntid 96, 1, 1 { ret; }
"""
)


def word(address: int) -> int:
    return int.from_bytes(get(address, 4), "little")


def variables_belong_to_their_module() -> None:
    start()
    out = alloc(4)
    modules = [new("cuModuleLoadData", PTX.encode()) for _ in range(2)]
    addresses = []
    for module in modules:
        at, length = u64(), size()
        ok("cuModuleGetGlobal_v2", ref(at), ref(length), module, b"counter")
        assert (word(at.value), length.value) == (41, 4)
        addresses.append(at.value)
        ok("cuModuleGetGlobal_v2", ref(at), ref(length), module, b"table")
        assert get(at.value, 16) == bytes(range(1, 9)) + bytes(8)
    bump = new("cuModuleGetFunction", modules[0], b"bump")
    put(addresses[0], (99).to_bytes(4, "little"))
    assert launch(bump, [ctypes.c_uint8(0), u64(out)]) == 0
    assert (word(out), word(addresses[0]), word(addresses[1])) == (100, 100, 41)
    ok("cuModuleUnload", modules[0])
    assert code("cuModuleUnload", modules[0]) == INVALID_HANDLE
    assert launch(bump, [ctypes.c_uint8(0), u64(out)]) == INVALID_HANDLE
    assert code("cuMemcpyDtoH_v2", (ctypes.c_char * 4)(), u64(addresses[0]), size(4)) == INVALID_VALUE
    assert word(addresses[1]) == 41


def libraries_serve_every_context() -> None:
    start()
    library = new("cuLibraryLoadData", PTX.encode(), None, None, 0, None, None, 0)
    count = new("cuLibraryGetKernelCount", library, kind=u32)
    assert count.value == 2
    kernels = (ptr * 2)()
    ok("cuLibraryEnumerateKernels", kernels, 2, library)
    names = set()
    for kernel in kernels:
        names.add(new("cuKernelGetName", ptr(kernel), kind=ctypes.c_char_p).value)
    assert names == {b"bump", b"other"}
    bump = new("cuLibraryGetKernel", library, b"bump")
    assert code("cuLibraryGetKernel", ref(ptr()), library, b"absent") == NOT_FOUND
    offset, length = size(), size()
    layout = []
    for i in range(2):
        ok("cuKernelGetParamInfo", bump, size(i), ref(offset), ref(length))
        layout.append((offset.value, length.value))
    assert layout == [(0, 1), (8, 8)]
    assert code("cuKernelGetParamInfo", bump, size(2), ref(offset), ref(length)) == INVALID_VALUE

    for _ in range(2):
        context = new("cuCtxCreate_v2", 0, 0)
        at, out = u64(), alloc(4)
        ok("cuLibraryGetGlobal", ref(at), None, library, b"counter")
        assert word(at.value) == 41, "each context has its own"
        assert launch(bump, [ctypes.c_uint8(0), u64(out)]) == 0, "a kernel is launched like a function"
        function = new("cuKernelGetFunction", bump)
        assert launch(function, [ctypes.c_uint8(0), u64(out)]) == 0
        assert word(out) == word(at.value) == 43
        module = new("cuLibraryGetModule", library)
        assert new("cuModuleGetFunction", module, b"bump").value == function.value
        assert new("cuFuncGetModule", function).value == module.value
        ok("cuCtxDestroy_v2", context)
        assert code("cuFuncGetModule", ref(ptr()), function) == INVALID_HANDLE
    ok("cuLibraryUnload", library)
    assert code("cuKernelGetName", ref(ptr()), bump) == INVALID_HANDLE


def attributes_of_functions() -> None:
    start()
    module = new("cuModuleLoadData", PTX.encode())
    bump, other = (new("cuModuleGetFunction", module, name) for name in (b"bump", b"other"))

    def attribute(which: int, function: ptr) -> int:
        return int(new("cuFuncGetAttribute", which, function, kind=i32).value)

    assert (attribute(0, bump), attribute(0, other)) == (1024, 96)
    assert (attribute(1, bump), attribute(2, bump), attribute(5, bump), attribute(6, bump)) == (512, 16, 80, 80)
    assert attribute(8, bump) == 48 * 1024 - 512
    ok("cuFuncSetAttribute", bump, 8, 163 * 1024 - 512)
    assert code("cuFuncSetAttribute", bump, 8, 163 * 1024 - 511) == INVALID_VALUE
    assert code("cuFuncSetAttribute", bump, 0, 5) == INVALID_VALUE
    assert code("cuFuncGetAttribute", ref(i32()), 99, bump) == INVALID_VALUE
    blocks, grid, block = i32(), i32(), i32()
    ok("cuOccupancyMaxActiveBlocksPerMultiprocessor", ref(blocks), other, 64, size(0))
    assert blocks.value == 32
    ok("cuOccupancyMaxActiveBlocksPerMultiprocessor", ref(blocks), other, 128, size(0))
    assert blocks.value == 0
    ok("cuOccupancyMaxPotentialBlockSize", ref(grid), ref(block), other, None, size(0), 0)
    assert (block.value, grid.value) == (64, 16 * 32), "96 threads would leave 32 of 2048 idle"


def linking_joins_units() -> None:
    start()
    library = (
        HEADER
        + """
.visible .func (.param .b32 result) twice(.param .b32 value)
{
    .reg .b32 %r;
    ld.param.b32 %r, [value];
    add.u32 %r, %r, %r;
    st.param.b32 [result], %r;
    ret;
}
"""
    )
    user = (
        HEADER
        + """
.extern .func (.param .b32 result) twice(.param .b32 value);
.visible .entry double_it(.param .u64 p)
{
    .reg .b32 %r;
    .reg .b64 %a;
    ld.param.u64 %a, [p];
    ld.global.u32 %r, [%a];
    {
    .param .b32 argument;
    .param .b32 answer;
    st.param.b32 [argument], %r;
    call.uni (answer), twice, (argument);
    ld.param.b32 %r, [answer];
    }
    st.global.u32 [%a], %r;
    ret;
}
"""
    )

    def add(state: ptr, text: str) -> None:
        data = text.encode()
        ok("cuLinkAddData_v2", state, 1, data + b"\0", size(len(data) + 1), b"unit", 0, None, None)

    state = ptr()
    ok("cuLinkCreate_v2", 0, None, None, ref(state))
    add(state, user)
    add(state, library)
    image, length = ptr(), size()
    ok("cuLinkComplete", state, ref(image), ref(length))
    module = new("cuModuleLoadData", image)
    ok("cuLinkDestroy", state)
    p = alloc(4)
    put(p, (21).to_bytes(4, "little"))
    assert launch(new("cuModuleGetFunction", module, b"double_it"), [u64(p)]) == 0
    assert word(p) == 42

    ok("cuLinkCreate_v2", 0, None, None, ref(state))
    add(state, user)
    ok("cuLinkComplete", state, ref(image), ref(length))
    module = new("cuModuleLoadData", image)
    assert code("cuModuleGetFunction", ref(ptr()), module, b"double_it") == INVALID_PTX, "calls what nobody defines"


def packed_parameters() -> None:
    start()
    module = new("cuModuleLoadData", PTX.encode())
    bump, out = new("cuModuleGetFunction", module, b"bump"), alloc(4)
    buffer = ctypes.create_string_buffer(bytes(8) + out.to_bytes(8, "little"), 16)
    length = size(16)
    extra = (ptr * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(length), 0)
    ok("cuLaunchKernel", bump, 1, 1, 1, 1, 1, 1, 0, None, None, extra)
    assert word(out) == 42
    broken = (ptr * 3)(7, ctypes.addressof(buffer), 0)
    assert code("cuLaunchKernel", bump, 1, 1, 1, 1, 1, 1, 0, None, None, broken) == INVALID_VALUE
    config = (ctypes.c_uint32 * 14)(1, 1, 1, 1, 1, 1, 0)  # then stream, attributes and their number
    unused, target = ctypes.c_uint8(0), u64(out)
    addresses = (ptr * 2)(ctypes.addressof(unused), ctypes.addressof(target))
    ok("cuLaunchKernelEx", config, bump, addresses, None)
    assert word(out) == 43


def wide_kernel(bounds: str, values: int = 100) -> str:
    """A kernel that keeps many values alive at a time."""
    names = range(values)
    loads = "".join(f"ld.global.f32 %f{i}, [%a+{4 * i}];\n" for i in names)
    stores = "".join(f"st.global.f32 [%a+{4 * (values - 1 - i)}], %f{i};\n" for i in names)
    head = f".visible .entry k(.param .u64 p) {bounds} {{ .reg .b64 %a; .reg .f32 %f<{values}>; ld.param.u64 %a, [p];\n"
    return HEADER + head + loads + stores + "ret; }"


def registers_leave_room_for_the_blocks_that_a_kernel_declares() -> None:
    start()
    p = alloc(4096)

    def check(kernel: ptr, threads: int, blocks: int, most: int) -> None:
        found = {which: new("cuFuncGetAttribute", which, kernel, kind=i32).value for which in (MAX_THREADS, NUM_REGS)}
        occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        fit = new(occupancy, kernel, threads, size(0), kind=i32).value
        assert found[MAX_THREADS] >= threads and 0 < found[NUM_REGS] <= most, (threads, blocks, most, found)
        assert fit >= blocks and found[NUM_REGS] * threads * fit <= 65536, (threads, blocks, most, found, fit)
        grid, block = i32(), i32()
        ok("cuOccupancyMaxPotentialBlockSize", ref(grid), ref(block), kernel, None, size(0), 0)
        assert 0 < block.value <= found[MAX_THREADS] and grid.value > 0
        assert launch(kernel, [u64(p)], 1, threads) == 0
        ok("cuCtxSynchronize")

    for bounds, threads, blocks, most in [
        ("", 1024, 1, 255),
        (".maxntid 1024, 1, 1", 1024, 1, 64),
        (".maxntid 32, 32", 1024, 1, 64),
        (".reqntid 1024, 1, 1", 1024, 1, 64),
        (".maxntid 1024 .minnctapersm 2", 1024, 2, 32),
        (".maxntid 512 .minnctapersm 3", 512, 3, 40),
        (".maxntid 256, 1, 1 .minnctapersm 1", 256, 1, 255),
        (".maxntid 64, 1, 1 .minnctapersm 16", 64, 16, 64),
        (".maxntid 1024 .minnctapersm 64", 1024, 2, 32),
        (".maxnreg 40", 1024, 1, 40),
        (".maxntid 128 .maxnreg 24", 128, 1, 24),
    ]:
        check(function(wide_kernel(bounds), "k"), threads, blocks, most)
    assert new("cuFuncGetAttribute", NUM_REGS, function(wide_kernel(".maxntid 128"), "k"), kind=i32).value >= 100
    # The options of the compiler bound them, too, for modules and libraries.
    text = wide_kernel(".maxntid 128").encode() + b"\0"
    for option, value, most in [
        (JIT_MAX_REGISTERS, 48, 48),
        (JIT_THREADS_PER_BLOCK, 1024, 64),
        (JIT_MAX_REGISTERS, 0, 255),
    ]:
        options, values = (i32 * 1)(option), (size * 1)(value)
        with_options = new("cuModuleLoadDataEx", text, 1, options, values)
        check(new("cuModuleGetFunction", with_options, b"k"), 128, 1, most)
        library = new("cuLibraryLoadData", text, options, values, 1, None, None, 0)
        kernel = new("cuLibraryGetKernel", library, b"k")
        assert new("cuKernelGetAttribute", NUM_REGS, kernel, 0, kind=i32).value <= most
        check(new("cuKernelGetFunction", kernel), 128, 1, most)


if __name__ == "__main__":
    main(globals())
