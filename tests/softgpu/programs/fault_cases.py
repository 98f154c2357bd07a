"""Faults and misuse: the codes, how long they stick, and that the process lives."""

from __future__ import annotations

import atexit
import ctypes
import os
import random
import threading

from softcuda import (
    DEINITIALIZED,
    HEADER,
    ILLEGAL_ADDRESS,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_PTX,
    INVALID_VALUE,
    KERNELS,
    NOT_FOUND,
    NOT_INITIALIZED,
    alloc,
    code,
    function,
    get,
    launch,
    lib,
    main,
    module,
    new,
    ok,
    ptr,
    ref,
    size,
    start,
    u32,
    u64,
)

HOSTILE = os.environ.get("REMOTEGPU_SOFTGPU_PROFILE") == "hostile"


def an_illegal_address_ends_the_context_and_only_it() -> None:
    start()
    keep = alloc(4)
    ok("cuMemsetD32_v2", u64(keep), 5, size(1))
    context = new("cuCtxCreate_v2", 0, 0)
    store = function(KERNELS, "store")
    stream = new("cuStreamCreate", 1)
    assert launch(store, [u64(64), u32(1)], stream=stream) == 0
    assert code("cuStreamSynchronize", stream) == ILLEGAL_ADDRESS
    assert code("cuMemAlloc_v2", ref(u64()), size(8)) == ILLEGAL_ADDRESS
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert launch(store, [u64(keep), u32(1)]) == ILLEGAL_ADDRESS
    ok("cuCtxDestroy_v2", context)
    assert get(keep, 4) == bytes([5, 0, 0, 0])


def freed_memory_is_an_illegal_address() -> None:
    start()
    store = function(KERNELS, "store")
    p = alloc(4)
    ok("cuMemFree_v2", u64(p))
    assert launch(store, [u64(p), u32(1)]) == 0
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS


def a_kernel_cannot_write_beyond_its_buffer() -> None:
    start()
    store = function(KERNELS, "store")
    p = alloc(1024)
    assert launch(store, [u64(p + 1020), u32(1)]) == 0
    ok("cuCtxSynchronize")
    assert launch(store, [u64(p + 1024), u32(1)]) == 0
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS


def hostile_drivers_tell_of_faults_late() -> None:
    start()
    store = function(KERNELS, "store")
    done = threading.Event()
    stream = new("cuStreamCreate", 1)
    assert launch(store, [u64(64), u32(1)], stream=stream) == 0
    done.wait(0.2)
    late = code("cuStreamQuery", stream)
    assert late == (0 if HOSTILE else ILLEGAL_ADDRESS)
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert code("cuStreamQuery", stream) == ILLEGAL_ADDRESS


def freeing_under_a_kernel() -> None:
    """CUDA waits in cuMemFree; in the hostile profile the kernel faults, as after cuMemUnmap."""
    start()
    spin = function(KERNELS, "spin")
    flag, out = alloc(4), alloc(4)
    stream = new("cuStreamCreate", 1)
    assert launch(spin, [u64(flag), u64(out)], stream=stream) == 0
    if HOSTILE:
        ok("cuMemFree_v2", u64(flag))
        assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS
    else:
        ok("cuMemcpyHtoDAsync_v2", u64(flag), b"\1\0\0\0", size(4), new("cuStreamCreate", 1))
        ok("cuMemFree_v2", u64(flag))
        ok("cuCtxSynchronize")


def unmapping_under_a_kernel() -> None:
    start()
    spin, page = function(KERNELS, "spin"), 2 << 20
    properties = (ctypes.c_uint64 * 4)(1, 1, 0, 0)
    base = new("cuMemAddressReserve", size(page), size(0), u64(0), u64(0), kind=u64)
    memory = new("cuMemCreate", size(page), properties, u64(0), kind=u64)
    ok("cuMemMap", base, size(page), size(0), memory, u64(0))
    ok("cuMemSetAccess", base, size(page), (ctypes.c_uint32 * 3)(1, 0, 3), size(1))
    assert launch(spin, [base, u64(alloc(4))], stream=new("cuStreamCreate", 1)) == 0
    ok("cuMemUnmap", base, size(page))
    assert code("cuCtxSynchronize") == ILLEGAL_ADDRESS


def launches_outside_the_limits_are_refused() -> None:
    start()
    store = function(KERNELS, "store")
    p = alloc(4)
    arguments = [u64(p), u32(1)]
    assert launch(store, arguments, blocks=0) == INVALID_VALUE
    assert launch(store, arguments, threads=0) == INVALID_VALUE
    assert launch(store, arguments, threads=1025) == INVALID_VALUE
    values = (ptr * 2)(*[ctypes.addressof(a) for a in arguments])
    assert code("cuLaunchKernel", store, 1, 70000, 1, 1, 1, 1, 0, None, values, None) == INVALID_VALUE
    assert code("cuLaunchKernel", store, 1, 1, 1, 1, 1, 1, 49153, None, values, None) == INVALID_VALUE
    assert code("cuLaunchKernel", store, 1, 1, 1, 1, 1, 1, 0, None, None, None) == INVALID_VALUE
    assert code("cuLaunchKernel", store, 1, 1, 1, 1, 1, 1, 0, ptr(12345), values, None) == INVALID_HANDLE
    ok("cuFuncSetAttribute", store, 8, 100_000)
    ok("cuLaunchKernel", store, 1, 1, 1, 1, 1, 1, 100_000, None, values, None)
    small = function(HEADER + ".visible .entry k() .maxntid 64, 1, 1 { ret; }", "k")
    assert launch(small, [], threads=64) == 0
    assert launch(small, [], threads=65) == INVALID_VALUE
    ok("cuCtxSynchronize")


def ptx_errors_are_told_in_the_log() -> None:
    start()
    log = ctypes.create_string_buffer(400)
    options = (ctypes.c_int * 2)(5, 6)
    values = (ptr * 2)(ctypes.addressof(log), 400)
    text = HEADER.encode() + b".visible .entry k() { this is no instruction; }\0"
    assert code("cuModuleLoadDataEx", ref(ptr()), text, 2, options, values) == INVALID_PTX
    assert len(log.value) > 10 and values[1] == len(log.value)
    loaded = module(KERNELS)
    assert code("cuModuleGetFunction", ref(ptr()), loaded, b"absent") == NOT_FOUND
    assert code("cuModuleGetGlobal_v2", ref(u64()), ref(size()), loaded, b"absent") == NOT_FOUND


def handles_that_are_none() -> None:
    start()
    rng = random.Random(5)
    bad = [0, 3, 16, 1 << 63] + [rng.getrandbits(64) for _ in range(50)]
    out, text = u64(), ctypes.create_string_buffer(64)
    calls = {
        "cuCtxDestroy_v2": INVALID_CONTEXT,
        "cuCtxPushCurrent_v2": INVALID_CONTEXT,
        "cuModuleUnload": INVALID_HANDLE,
        "cuLibraryUnload": INVALID_HANDLE,
        "cuEventSynchronize": INVALID_HANDLE,
        "cuEventDestroy_v2": INVALID_HANDLE,
        "cuStreamDestroy_v2": INVALID_HANDLE,
        "cuLinkDestroy": INVALID_HANDLE,
        "cuMemPoolDestroy": INVALID_VALUE,
        "cuMemRelease": INVALID_VALUE,
    }
    for value in bad:
        for name, expected in calls.items():
            assert code(name, u64(value)) == expected, (name, value)
        assert code("cuModuleGetFunction", ref(out), u64(value), b"k") == INVALID_HANDLE
        assert code("cuFuncGetAttribute", ref(out), 0, u64(value)) == INVALID_HANDLE
        assert code("cuKernelGetName", ref(out), u64(value)) == INVALID_HANDLE
        assert code("cuLaunchKernel", u64(value), 1, 1, 1, 1, 1, 1, 0, None, None, None) == INVALID_HANDLE
        assert code("cuMemFreeHost", u64(value)) == (0 if value == 0 else INVALID_VALUE)
        assert code("cuMemcpyDtoH_v2", text, u64(value), size(4)) == INVALID_VALUE
    freed = new("cuStreamCreate", 0)
    ok("cuStreamDestroy_v2", freed)
    assert code("cuStreamSynchronize", freed) == INVALID_HANDLE


def contexts_are_pushed_and_popped() -> None:
    ok("cuInit", 0)
    assert code("cuMemAlloc_v2", ref(u64()), size(4)) == INVALID_CONTEXT
    assert code("cuCtxPopCurrent_v2", ref(ptr())) == INVALID_CONTEXT
    first, second = new("cuCtxCreate_v2", 0, 0), new("cuCtxCreate_v2", 0, 0)
    assert new("cuCtxPopCurrent_v2").value == second.value
    assert new("cuCtxGetCurrent").value == first.value
    ok("cuCtxPushCurrent_v2", second)
    stream = new("cuStreamCreate", 0)
    ok("cuCtxPopCurrent_v2", None)
    event = new("cuEventCreate", 0)
    assert code("cuEventRecord", event, stream) == INVALID_HANDLE, "stream of another context"
    ok("cuCtxDestroy_v2", second)
    assert code("cuStreamSynchronize", stream) == INVALID_HANDLE
    ok("cuCtxDestroy_v2", first)
    assert new("cuCtxGetCurrent").value is None


def primary_contexts_are_counted() -> None:
    context = start()
    p = alloc(64)
    flags, active = u32(), ctypes.c_int()
    again = new("cuDevicePrimaryCtxRetain", 0)
    assert again.value == context.value
    ok("cuDevicePrimaryCtxRelease_v2", 0)
    assert len(get(p, 64)) == 64
    ok("cuDevicePrimaryCtxRelease_v2", 0)
    ok("cuDevicePrimaryCtxGetState", 0, ref(flags), ref(active))
    assert active.value == 0
    assert code("cuMemFree_v2", u64(p)) != 0
    assert code("cuDevicePrimaryCtxRelease_v2", 0) == INVALID_CONTEXT
    start()
    ok("cuDevicePrimaryCtxSetFlags_v2", 0, 4)
    ok("cuDevicePrimaryCtxGetState", 0, ref(flags), ref(active))
    assert (flags.value, active.value) == (4, 1)


def a_forked_child_is_told_to_start_anew() -> None:
    start()
    child = os.fork()
    if child == 0:
        os._exit(code("cuMemAlloc_v2", ref(u64()), size(4)))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == NOT_INITIALIZED
    alloc(4)


def at_exit_the_driver_is_there() -> None:
    """C's exit handlers find the driver, also those that were registered before cuInit."""
    libc = ctypes.CDLL(None)
    handler = ctypes.CFUNCTYPE(None)(lambda: os._exit(code("cuCtxSynchronize")))
    atexit.register(lambda: None)
    libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    libc.on_exit(ctypes.cast(handler, ctypes.c_void_p), None)
    start()
    alloc(4)
    libc.exit(DEINITIALIZED + 100)


def names_of_errors_and_functions() -> None:
    text = ctypes.c_char_p()
    ok("cuGetErrorName", 700, ref(text))
    assert text.value == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    assert code("cuGetErrorString", 123456, ref(text)) == INVALID_VALUE
    address, status = ptr(), ctypes.c_int()
    ok("cuGetProcAddress_v2", b"cuMemAlloc", ref(address), 12000, u64(0), ref(status))
    assert address.value == ctypes.cast(lib.cuMemAlloc_v2, ptr).value and status.value == 0
    ok("cuGetProcAddress_v2", b"cuLaunchKernel", ref(address), 12000, u64(2), ref(status))
    assert address.value == ctypes.cast(lib.cuLaunchKernel_ptsz, ptr).value
    ok("cuGetProcAddress_v2", b"cuNoSuchThing", ref(address), 12000, u64(0), ref(status))
    assert address.value is None and status.value == 1


if __name__ == "__main__":
    main(globals())
