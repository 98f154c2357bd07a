"""A variable that host and kernels share, by the driver's functions: it goes with its library, and comes again."""

import ctypes

import numpy as np
from cu import CudaError, cu, launch, ok, start, u32

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 shared[4] = {5, 6, 7, 8};
.visible .global .align 4 .u32 plain = 1;
.visible .entry bump(.param .u32 by)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<4>;
    ld.param.u32 %r1, [by];
    mov.u32 %r2, %tid.x;
    mov.u64 %d1, shared;
    mul.wide.u32 %d2, %r2, 4;
    add.s64 %d1, %d1, %d2;
    ld.global.u32 %r3, [%d1];
    add.u32 %r3, %r3, %r1;
    st.global.u32 [%d1], %r3;
    ret;
}
\0"""


def refused(call, *arguments):
    try:
        ok(call(*arguments))
    except CudaError as error:
        return error.code
    return 0


start()
for round_ in range(3):
    library = ok(cu.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
    address, size = ok(cu.cuLibraryGetManaged(library, b"shared"))
    assert size == 16
    assert refused(cu.cuLibraryGetManaged, library, b"plain") == 500
    assert refused(cu.cuLibraryGetManaged, library, b"absent") == 500
    again, _ = ok(cu.cuLibraryGetManaged(library, b"shared"))
    assert int(again) == int(address)
    words = np.frombuffer((ctypes.c_char * 16).from_address(int(address)), np.uint32)
    assert words.tolist() == [5, 6, 7, 8]
    kernel = ok(cu.cuLibraryGetKernel(library, b"bump"))
    words[1] = 100
    launch(cu.CUfunction(int(kernel)), 1, 4, [u32(10 + round_)])
    ok(cu.cuCtxSynchronize())
    assert words.tolist() == [15 + round_, 110 + round_, 17 + round_, 18 + round_], words
    assert refused(cu.cuMemFree, address) == 1
    assert refused(cu.cuMemHostGetFlags, int(address)) == 1
    del words
    ok(cu.cuLibraryUnload(library))
print("ok")
