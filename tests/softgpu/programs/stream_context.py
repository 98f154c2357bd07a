"""Calls every function that takes a stream, first with a current context and then without; prints the codes of both."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any

from softcuda import (
    CALLBACK,
    HEADER,
    HOST_FUNCTION,
    alloc,
    code,
    function,
    i32,
    new,
    ok,
    pinned,
    ptr,
    ref,
    size,
    start,
    u32,
    u64,
)

context = start()
p, (host, _) = alloc(1 << 12), pinned(1 << 12)
managed = int(new("cuMemAllocManaged", size(4096), 1, kind=u64).value)
s, other = new("cuStreamCreate", 1), new("cuStreamCreate", 1)
to_end = [new("cuStreamCreate", 1) for _ in range(4)]
event, pool, graph = new("cuEventCreate", 0), new("cuDeviceGetDefaultMemPool", 0), new("cuGraphCreate", 0)
executable = new("cuGraphInstantiateWithFlags", graph, u64(0))
kernel = function(HEADER + ".visible .entry k() { ret; }", "k")
host_function, callback = HOST_FUNCTION(lambda _: None), CALLBACK(lambda _stream, _code, _data: None)
words, room = (u64 * 8)(), ctypes.create_string_buffer(64)
out = [ref(words, 8 * index) for index in range(8)]
to, source = u64(p), u64(p + 2048)


def copy_2d() -> Any:
    side = [0, 0, 2, 0]
    return ref((u64 * 16)(*side, p, 0, 64, *side, p + 2048, 0, 64, 16, 2))


def copy_3d(owner: int) -> Any:
    side = [0, 0, 0, 0, 2, 0]
    return ref((u64 * 25)(*side, p, 0, owner, 64, 2, *side, p + 2048, 0, owner, 64, 2, 16, 2, 1))


class Config(ctypes.Structure):
    _fields_ = (("shape", u32 * 7), ("stream", ptr), ("attributes", ptr), ("count", u32))


def attribute_bytes() -> Any:
    return ref((u32 * 6)(1))


def allocated() -> u64:
    """Memory that is free to be freed."""
    address = u64()
    assert code("cuMemAllocAsync", ref(address), size(64), s) == 0
    return address


def set_flag() -> Any:
    ok("cuMemsetD32Async", to, 5, size(2), s)
    return to


location = (ctypes.c_uint64 * 1)(1)
CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "cuMemcpyAsync": lambda: (to, source, size(8), s),
    "cuMemcpyPeerAsync": lambda: (to, context, source, context, size(8), s),
    "cuMemcpyHtoDAsync_v2": lambda: (to, ptr(host), size(8), s),
    "cuMemcpyDtoHAsync_v2": lambda: (ptr(host), to, size(8), s),
    "cuMemcpyDtoDAsync_v2": lambda: (to, source, size(8), s),
    "cuMemcpy2DAsync_v2": lambda: (copy_2d(), s),
    "cuMemcpy3DAsync_v2": lambda: (copy_3d(0), s),
    "cuMemcpy3DPeerAsync": lambda: (copy_3d(context.value or 0), s),
    "cuMemcpyWithAttributesAsync": lambda: (to, source, size(8), attribute_bytes(), s),
    "cuMemsetD8Async": lambda: (to, ctypes.c_ubyte(1), size(8), s),
    "cuMemsetD16Async": lambda: (to, ctypes.c_ushort(1), size(8), s),
    "cuMemsetD32Async": lambda: (to, 1, size(8), s),
    "cuMemsetD2D8Async": lambda: (to, size(64), ctypes.c_ubyte(1), size(8), size(2), s),
    "cuMemsetD2D16Async": lambda: (to, size(64), ctypes.c_ushort(1), size(8), size(2), s),
    "cuMemsetD2D32Async": lambda: (to, size(64), 1, size(8), size(2), s),
    "cuMemFreeAsync": lambda: (allocated(), s),
    "cuMemAllocAsync": lambda: (out[0], size(64), s),
    "cuMemAllocFromPoolAsync": lambda: (out[0], size(64), pool, s),
    "cuStreamGetPriority": lambda: (s, out[0]),
    "cuStreamGetDevice": lambda: (s, out[0]),
    "cuStreamGetFlags": lambda: (s, out[0]),
    "cuStreamGetId": lambda: (s, out[0]),
    "cuStreamGetCtx": lambda: (s, out[0]),
    "cuStreamGetCtx_v2": lambda: (s, out[0], out[1]),
    "cuStreamGetGreenCtx": lambda: (s, out[0]),
    "cuStreamWaitEvent": lambda: (s, event, 0),
    "cuStreamWaitValue32_v2": lambda: (s, set_flag(), 5, 0),
    "cuStreamWaitValue64_v2": lambda: (s, set_flag(), u64(5), 0),
    "cuStreamWriteValue32_v2": lambda: (s, to, 5, 0),
    "cuStreamWriteValue64_v2": lambda: (s, to, u64(5), 0),
    "cuStreamAddCallback": lambda: (s, callback, None, 0),
    "cuStreamIsCapturing": lambda: (s, out[0]),
    "cuStreamGetCaptureInfo": lambda: (s, out[0], out[1]),
    "cuStreamGetCaptureInfo_v2": lambda: (s, *out[:5]),
    "cuStreamGetCaptureInfo_v3": lambda: (s, *out[:6]),
    "cuStreamSynchronize": lambda: (s,),
    "cuStreamQuery": lambda: (other,),
    "cuStreamDestroy": lambda: (to_end.pop(),),
    "cuStreamDestroy_v2": lambda: (to_end.pop(),),
    "cuStreamCopyAttributes": lambda: (s, other),
    "cuStreamGetAttribute": lambda: (s, 1, room),
    "cuStreamSetAttribute": lambda: (s, 1, room),
    "cuEventRecord": lambda: (event, s),
    "cuEventRecordWithFlags": lambda: (event, s, 0),
    "cuLaunchKernel": lambda: (kernel, 1, 1, 1, 1, 1, 1, 0, s, None, None),
    "cuLaunchKernelEx": lambda: (ref(Config((u32 * 7)(1, 1, 1, 1, 1, 1, 0), s, None, 0)), kernel, None, None),
    "cuLaunchCooperativeKernel": lambda: (kernel, 1, 1, 1, 1, 1, 1, 0, s, None),
    "cuLaunchHostFunc": lambda: (s, host_function, None),
    "cuLaunchHostFunc_v2": lambda: (s, host_function, None, 0),
    # Functions on graphs and managed memory, which the table of the recorder does not have.
    "cuGraphUpload": lambda: (executable, s),
    "cuGraphLaunch": lambda: (executable, s),
    "cuMemPrefetchAsync": lambda: (u64(managed), size(4096), i32(0), s),
    "cuStreamAttachMemAsync": lambda: (s, u64(managed), size(0), 1),
    "cuStreamBeginCapture_v2": lambda: (s, 2),
    "cuStreamEndCapture": lambda: (s, out[0]),
}


def codes() -> dict[str, int]:
    answers = {name: code(name, *arguments()) for name, arguments in CALLS.items()}
    # Nothing of Python's is called any more when it ends.
    ok("cuStreamSynchronize", s)
    return answers


with_context = codes()
ok("cuCtxSetCurrent", None)
without = codes()
default = code("cuStreamQuery", None)
print(json.dumps({"with": with_context, "without": without, "default": default}))
