"""The driver through ctypes, for programs that test it: codes instead of exceptions, nothing between."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

lib = ctypes.CDLL("libcuda.so.1")
u32, u64, size, ptr, i32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int32
ref = ctypes.byref

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, DEINITIALIZED = 1, 2, 3, 4
INVALID_CONTEXT, NO_BINARY, INVALID_PTX, INVALID_HANDLE, NOT_FOUND = 201, 209, 218, 400, 500
NOT_READY, ILLEGAL_ADDRESS, OUT_OF_RESOURCES, ASSERT, NOT_PERMITTED, NOT_SUPPORTED = 600, 700, 701, 710, 800, 801
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def code(name: str, *arguments: Any) -> int:
    result: int = getattr(lib, name)(*arguments)
    return result


def ok(name: str, *arguments: Any) -> None:
    result = code(name, *arguments)
    assert result == 0, f"{name}: {result}"


def start(device: int = 0) -> ptr:
    ok("cuInit", 0)
    context = ptr()
    ok("cuDevicePrimaryCtxRetain", ref(context), device)
    ok("cuCtxSetCurrent", context)
    return context


def new(name: str, *arguments: Any, kind: Any = ptr) -> Any:
    """The handle or number that a function answers through its first argument."""
    out = kind()
    ok(name, ref(out), *arguments)
    return out


def alloc(n: int) -> int:
    return int(new("cuMemAlloc_v2", size(n), kind=u64).value)


def pinned(n: int) -> tuple[int, ctypes.Array[ctypes.c_char]]:
    address = new("cuMemHostAlloc", size(n), 0).value
    return address, (ctypes.c_char * n).from_address(address)


def put(address: int, data: bytes) -> None:
    ok("cuMemcpyHtoD_v2", u64(address), data, size(len(data)))


def get(address: int, n: int) -> bytes:
    out = ctypes.create_string_buffer(n)
    ok("cuMemcpyDtoH_v2", out, u64(address), size(n))
    return out.raw


def module(text: str) -> ptr:
    handle: ptr = new("cuModuleLoadData", text.encode() + b"\0")
    return handle


def function(text: str, name: str) -> ptr:
    handle: ptr = new("cuModuleGetFunction", module(text), name.encode())
    return handle


def launch(kernel: ptr, arguments: list[Any], blocks: int = 1, threads: int = 1, stream: Any = None) -> int:
    addresses = (ptr * max(1, len(arguments)))(*[ctypes.addressof(a) for a in arguments])
    return code("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, stream, addresses, None)


HEADER = ".version 7.0\n.target sm_80\n.address_size 64\n"

# *p = value, after *flag became non-zero if flag is not null
KERNELS = (
    HEADER
    + """
.visible .entry store(.param .u64 p, .param .u32 value)
{
    .reg .b64 %a;
    .reg .b32 %v;
    ld.param.u64 %a, [p];
    ld.param.u32 %v, [value];
    st.global.u32 [%a], %v;
    ret;
}
.visible .entry spin(.param .u64 flag, .param .u64 out)
{
    .reg .pred %p;
    .reg .b32 %v;
    .reg .b64 %a;
    ld.param.u64 %a, [flag];
AGAIN:
    ld.volatile.global.u32 %v, [%a];
    setp.eq.u32 %p, %v, 0;
    @%p bra AGAIN;
    ld.param.u64 %a, [out];
    st.global.u32 [%a], %v;
    ret;
}
"""
)


def main(cases: dict[str, Any]) -> None:
    """Runs the case named on the command line."""
    case: Callable[[], None] = cases[sys.argv[1]]
    case()
    print("ok", flush=True)
