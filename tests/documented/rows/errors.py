"""Error codes of calls that cannot do their work."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

from documented.driver import LEGACY, PTX, Machine, out, word
from documented.row import Table, always

TABLE = Table("errors")
answers = TABLE.answers

INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE = 1, 2, 101, 201, 400
NOT_FOUND, NOT_READY, NOT_PERMITTED, CAPTURE_UNSUPPORTED, CAPTURE_UNJOINED = 500, 600, 800, 900, 904
DEVICE, MEMORY, STREAMS, EVENTS = "Device Management", "Memory Management", "Stream Management", "Event Management"
CONTEXTS, MODULES, LAUNCHES, VIRTUAL = "Context Management", "Module Management", "Execution Control", "Virtual Memory"
NVML_QUERIES, NVML_START = "NVML: Device Queries", "NVML: Initialization and Cleanup"
OTHERS = "Unified Addressing"

answers(INVALID_VALUE, "cuInit", "Initialization", "The flags must be 0.", lambda m: (1,))
answers(INVALID_DEVICE, "cuDeviceGet", DEVICE, "A negative ordinal is an invalid device.", lambda m: (out(word()), -1))
answers(
    INVALID_DEVICE, "cuDeviceGet", DEVICE, "An ordinal beyond the count is an invalid device.",
    lambda m: (out(word()), 1000),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuDeviceGetAttribute", DEVICE, "An attribute that does not exist is an invalid value.",
    lambda m: (out(word()), 100_000, 0),
)  # fmt: skip
answers(
    INVALID_DEVICE, "cuDeviceGetName", DEVICE, "An unknown device number is an invalid device.",
    lambda m: (ctypes.create_string_buffer(64), 64, 999),
)  # fmt: skip
answers(INVALID_DEVICE, "cuDeviceTotalMem", DEVICE, "So it is for the size of memory.", lambda m: (out(word()), 999))
answers(
    INVALID_DEVICE, "cuDevicePrimaryCtxRetain", "Primary Context Management", "So it is for a primary context.",
    lambda m: (out(word()), 999),
)  # fmt: skip
answers(INVALID_VALUE, "cuMemAlloc", MEMORY, "A size of 0 is an invalid value.", lambda m: (out(word()), 0))
answers(OUT_OF_MEMORY, "cuMemAlloc", MEMORY, "More than there is, is out of memory.", lambda m: (out(word()), 1 << 50))
answers(
    INVALID_VALUE, "cuMemAllocPitch", MEMORY, "An element has 4, 8 or 16 bytes.",
    lambda m: (out(word()), out(word()), 64, 4, 3),
)  # fmt: skip
answers(INVALID_VALUE, "cuMemFree", MEMORY, "An address that was not allocated is refused.", lambda m: (0x1234500,))
answers(
    INVALID_VALUE, "cuMemFree", MEMORY, "An address within an allocation is refused.", lambda m: (m.memory() + 256,)
)
answers(
    INVALID_VALUE, "cuMemcpyHtoD", MEMORY, "A copy to an invalid address is refused.",
    lambda m: (0, m.host(), 16),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuMemcpyDtoH", MEMORY, "A copy from an invalid address is refused.",
    lambda m: (m.host(), 0, 16),
)  # fmt: skip
answers(
    NOT_FOUND, "cuMemGetAddressRange", MEMORY, "An address that was not allocated is not found.",
    lambda m: (out(word()), out(word()), 0x1234500),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuMemHostAlloc", MEMORY, "A flag that does not exist is refused.",
    lambda m: (out(word()), 4096, 0x8000),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuMemHostRegister", MEMORY, "A flag that does not exist is refused.",
    lambda m: (ctypes.create_string_buffer(8192), 4096, 0x8000),
)  # fmt: skip
answers(
    713, "cuMemHostUnregister", MEMORY, "Memory that is not registered cannot be unregistered.",
    lambda m: (ctypes.create_string_buffer(64),),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuMemAllocManaged", MEMORY, "It is attached to the host or to all, never to neither.",
    lambda m: (out(word()), 4096, 0),
)  # fmt: skip


@TABLE.row(
    "cuMemHostRegister", MEMORY, "Memory that is registered cannot be registered again.",
    {"cuMemHostRegister": always(0)},
)  # fmt: skip
def _registered_twice(m: Machine) -> None:
    pages = ctypes.create_string_buffer(8192)
    m.ok("cuMemHostRegister", pages, 8192, 0)
    assert m.cuda.cuMemHostRegister(pages, 8192, 0) == 712
    m.ok("cuMemHostUnregister", pages)


answers(
    (200, 218), "cuModuleLoadData", MODULES, "An image of no known form is refused.", lambda m: (out(word()), b"no\0")
)
answers(
    218, "cuModuleLoadData", MODULES, "PTX that does not compile is invalid PTX.",
    lambda m: (out(word()), PTX.replace(b"ld.param.u64 %a, [word];", b"ld.param.u64 %a [word")),
)  # fmt: skip
answers(301, "cuModuleLoad", MODULES, "A file that is not there is not found.", lambda m: (out(word()), b"/no/such"))
answers(
    NOT_FOUND, "cuModuleGetFunction", MODULES, "A kernel that the module lacks is not found.",
    lambda m: (out(word()), m.made("cuModuleLoadData", PTX), b"absent"),
)  # fmt: skip
answers(
    NOT_FOUND, "cuModuleGetGlobal", MODULES, "A variable that the module lacks is not found.",
    lambda m: (out(word()), out(word()), m.made("cuModuleLoadData", PTX), b"absent"),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuStreamCreate", STREAMS, "A flag that does not exist is refused.", lambda m: (out(word()), 0x80)
)
answers(INVALID_VALUE, "cuEventCreate", EVENTS, "A flag that does not exist is refused.", lambda m: (out(word()), 0x80))
answers(
    INVALID_VALUE, "cuEventCreate", EVENTS, "An event for other processes must not measure time.",
    lambda m: (out(word()), 4),
)  # fmt: skip
answers(
    INVALID_HANDLE, "cuEventElapsedTime", EVENTS, "Events that were never recorded have no time between them.",
    lambda m: (out(ctypes.c_float()), m.event(), m.event()),
)  # fmt: skip


@TABLE.row(
    "cuEventElapsedTime", EVENTS, "Events that do not measure time have none between them.",
    {"cuEventElapsedTime": always(0)},
)  # fmt: skip
def _untimed(m: Machine) -> None:
    first, second = m.event(2), m.event(2)
    m.ok("cuEventRecord", first, 0)
    m.ok("cuEventRecord", second, 0)
    m.ok("cuCtxSynchronize")
    assert m.cuda.cuEventElapsedTime(out(ctypes.c_float()), first, second) == INVALID_HANDLE


@TABLE.row(
    "cuEventElapsedTime", EVENTS, "Events that are not complete are not ready.", {"cuEventElapsedTime": always(0)}
)
def _incomplete(m: Machine) -> None:
    first, second, stream = m.event(), m.event(), m.stream()
    m.ok("cuEventRecord", first, stream)
    with m.held(stream):
        m.ok("cuEventRecord", second, stream)
        assert m.cuda.cuEventElapsedTime(out(ctypes.c_float()), first, second) == NOT_READY


@TABLE.row("cuEventQuery", EVENTS, "An event whose work has not ended is not ready.", {"cuEventQuery": always(0)})
def _event_not_ready(m: Machine) -> None:
    event, stream = m.event(), m.stream()
    with m.held(stream):
        m.ok("cuEventRecord", event, stream)
        assert m.cuda.cuEventQuery(event) == NOT_READY


@TABLE.row("cuStreamQuery", STREAMS, "A stream whose work has not ended is not ready.", {"cuStreamQuery": always(0)})
def _stream_not_ready(m: Machine) -> None:
    stream = m.stream()
    with m.held(stream):
        assert m.cuda.cuStreamQuery(stream) == NOT_READY


@TABLE.row("cuEventRecord", EVENTS, "Event and stream must be of one context.", {"cuEventRecord": always(0)})
def _record_of_another_context(m: Machine) -> None:
    stream = m.stream()
    other = m.made("cuCtxCreate", 0, 0)
    event = m.event()
    code = m.cuda.cuEventRecord(event, stream)
    m.ok("cuCtxDestroy", other)
    assert code == INVALID_HANDLE, code


def _shaped(dimensions: tuple[int, ...], m: Machine) -> tuple[Any, ...]:
    return (m.function("nothing"), *dimensions, 0, 0, None, None)


for says, dimensions in (
    ("A block of more threads than the device allows is refused.", (1, 1, 1, 2048, 1, 1)),
    ("A block of more threads in z than the device allows is refused.", (1, 1, 1, 1, 1, 65)),
    ("A grid of no blocks is refused.", (0, 1, 1, 1, 1, 1)),
    ("A block of no threads is refused.", (1, 1, 1, 0, 1, 1)),
    ("A grid of more blocks in y than the device allows is refused.", (1, 65_536, 1, 1, 1, 1)),
):
    answers(INVALID_VALUE, "cuLaunchKernel", LAUNCHES, says, partial(_shaped, dimensions))
answers(
    INVALID_VALUE, "cuLaunchKernel", LAUNCHES, "More shared memory than the kernel may have is refused.",
    lambda m: (m.function("nothing"), 1, 1, 1, 1, 1, 1, 1 << 20, 0, None, None),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuFuncSetAttribute", LAUNCHES, "An attribute that does not exist is refused.",
    lambda m: (m.function(), 1000, 1),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuFuncGetAttribute", LAUNCHES, "An attribute that does not exist is refused.",
    lambda m: (out(word()), 1000, m.function()),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuPointerGetAttribute", OTHERS, "Memory that CUDA does not know has no memory type.",
    lambda m: (out(word()), 2, ctypes.create_string_buffer(64)),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuGetErrorName", "Error Handling", "An unknown error number has no name.",
    lambda m: (123_456, out(word())),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuGetErrorString", "Error Handling", "An unknown error number has no description.",
    lambda m: (123_456, out(word())),
)  # fmt: skip
answers(215, "cuCtxGetLimit", CONTEXTS, "A limit that does not exist is unsupported.", lambda m: (out(word()), 1000))
answers(
    401, "cuStreamEndCapture", STREAMS, "A stream that does not capture has no capture to end.",
    lambda m: (m.stream(), out(word())),
)  # fmt: skip
answers(
    CAPTURE_UNSUPPORTED, "cuStreamBeginCapture", STREAMS, "The legacy default stream cannot be captured.",
    lambda m: (LEGACY, 0),
)  # fmt: skip


@TABLE.row(
    "cuStreamSynchronize", STREAMS, "A stream that captures cannot be waited for.",
    {"cuStreamSynchronize": always(0)},
)  # fmt: skip
def _wait_in_a_capture(m: Machine) -> None:
    stream = m.stream()
    m.ok("cuStreamBeginCapture", stream, 2)
    code = m.cuda.cuStreamSynchronize(stream)
    m.cuda.cuStreamEndCapture(stream, out(word()))
    assert code == CAPTURE_UNSUPPORTED, code


@TABLE.row(
    "cuStreamEndCapture", STREAMS, "A stream that joined the capture has to be joined again.",
    {"cuStreamEndCapture": always(0)},
)  # fmt: skip
def _unjoined(m: Machine) -> None:
    stream, joined, event = m.stream(), m.stream(), m.event(2)
    m.ok("cuStreamBeginCapture", stream, 2)
    m.ok("cuEventRecord", event, stream)
    m.ok("cuStreamWaitEvent", joined, event, 0)
    m.ok("cuMemsetD8Async", m.made("cuMemAlloc", 64), 1, 64, joined)
    code = m.cuda.cuStreamEndCapture(stream, out(word()))
    assert code == CAPTURE_UNJOINED, code


@TABLE.row(
    "cuLaunchHostFunc", LAUNCHES, "A host function must not call CUDA: it is not permitted.",
    {"cuMemAlloc": always(0)},
    {"share": "201, since the thread of host functions has no context; a call that needs none is done"},
)  # fmt: skip
def _call_in_a_host_function(m: Machine) -> None:
    stream, codes = m.stream(), []
    m.ok("cuLaunchHostFunc", stream, m.call(lambda: codes.append(m.cuda.cuMemAlloc(out(word()), 64))), None)
    m.ok("cuStreamSynchronize", stream)
    assert codes == [NOT_PERMITTED], codes


answers(
    INVALID_VALUE, "cuMemAddressReserve", VIRTUAL, "A size other than a multiple of a page is refused.",
    lambda m: (out(word()), 4097, 0, 0, 0),
)  # fmt: skip
answers(INVALID_VALUE, "cuMemUnmap", VIRTUAL, "What is not mapped cannot be unmapped.", lambda m: (0x1234000, 1 << 21))
answers(
    INVALID_VALUE, "cuMemAddressFree", VIRTUAL, "A range that was not reserved cannot be freed.",
    lambda m: (0x1234000, 1 << 21),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuStreamWaitEvent", STREAMS, "A flag that does not exist is refused.",
    lambda m: (m.stream(), m.event(), 0x80),
)  # fmt: skip
answers(
    INVALID_VALUE, "cuCtxSetSharedMemConfig", CONTEXTS, "A configuration that does not exist is refused.",
    lambda m: (77,),
)  # fmt: skip
answers(INVALID_VALUE, "cuCtxSetCacheConfig", CONTEXTS, "A preference that does not exist is refused.", lambda m: (77,))


def _device(m: Machine) -> int:
    place = word()
    assert m.nvml.nvmlDeviceGetHandleByIndex_v2(0, out(place)) == 0
    return place.value


answers(
    2,
    "nvmlDeviceGetHandleByIndex_v2",
    NVML_QUERIES,
    "An index beyond the count is invalid.",
    lambda m: (77, out(word())),
)
answers(
    6, "nvmlDeviceGetHandleByUUID", NVML_QUERIES, "A UUID that no device has is not found.",
    lambda m: (b"GPU-00000000-0000-0000-0000-000000000000", out(word())),
)  # fmt: skip
answers(
    7, "nvmlDeviceGetName", NVML_QUERIES, "A buffer that is too short is an insufficient size.",
    lambda m: (_device(m), ctypes.create_string_buffer(4), 1),
)  # fmt: skip
answers(
    7, "nvmlDeviceGetUUID", NVML_QUERIES, "A buffer that is too short is an insufficient size.",
    lambda m: (_device(m), ctypes.create_string_buffer(4), 1),
)  # fmt: skip
answers(
    25, "nvmlDeviceGetMemoryInfo_v2", NVML_QUERIES, "A version that the driver does not know is a mismatch.",
    lambda m: (_device(m), (ctypes.c_uint32 * 16)(0x7F000001)),
)  # fmt: skip
answers(
    2, "nvmlDeviceGetClockInfo", NVML_QUERIES, "A kind of clock that does not exist is invalid.",
    lambda m: (_device(m), 77, out(word())),
)  # fmt: skip
answers(
    2, "nvmlDeviceGetTemperature", NVML_QUERIES, "A sensor that does not exist is invalid.",
    lambda m: (_device(m), 77, out(word())),
    {"native": "not supported (3): the software GPU has no sensor at all"},
)  # fmt: skip


def _without_start(function: str, *arguments: object) -> None:
    @TABLE.row(function, NVML_START, "Before nvmlInit it is uninitialized.", {function: always(0)}, alone=True)
    def check(m: Machine) -> None:
        assert m.nvml.nvmlShutdown() == 0
        code = getattr(m.nvml, function)(*arguments)
        assert m.nvml.nvmlInit_v2() == 0
        assert code == 1, code


_without_start("nvmlDeviceGetCount_v2", out(word()))
_without_start("nvmlSystemGetDriverVersion", ctypes.create_string_buffer(80), 80)
_without_start("nvmlDeviceGetHandleByIndex_v2", 0, out(word()))
_without_start("nvmlDeviceGetHandleByUUID", b"GPU-0", out(word()))
_without_start("nvmlShutdown")
