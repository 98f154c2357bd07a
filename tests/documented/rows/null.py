"""Which pointers and handles may be NULL, and what it means."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from documented.driver import PTX, Machine, out, word
from documented.row import Table, always
from documented.rows.errors import _device

TABLE = Table("null")
answers = TABLE.answers
REFUSED = "Where the answer goes must not be NULL."


def _module(m: Machine) -> int:
    return m.made("cuModuleLoadData", PTX)


CUDA: tuple[tuple[str, str, Callable[[Machine], tuple[object, ...]]], ...] = (
    ("cuDriverGetVersion", "Version Management", lambda m: (None,)),
    ("cuDeviceGetCount", "Device Management", lambda m: (None,)),
    ("cuDeviceGet", "Device Management", lambda m: (None, 0)),
    ("cuDeviceGetName", "Device Management", lambda m: (None, 64, 0)),
    ("cuDeviceGetUuid", "Device Management", lambda m: (None, 0)),
    ("cuDeviceTotalMem", "Device Management", lambda m: (None, 0)),
    ("cuDeviceGetAttribute", "Device Management", lambda m: (None, 1, 0)),
    ("cuDeviceGetPCIBusId", "Device Management", lambda m: (None, 64, 0)),
    ("cuDevicePrimaryCtxRetain", "Primary Context Management", lambda m: (None, 0)),
    ("cuCtxGetCurrent", "Context Management", lambda m: (None,)),
    ("cuCtxGetDevice", "Context Management", lambda m: (None,)),
    ("cuCtxGetLimit", "Context Management", lambda m: (None, 0)),
    ("cuStreamCreate", "Stream Management", lambda m: (None, 0)),
    ("cuStreamCreateWithPriority", "Stream Management", lambda m: (None, 0, 0)),
    ("cuStreamGetPriority", "Stream Management", lambda m: (m.stream(), None)),
    ("cuStreamGetFlags", "Stream Management", lambda m: (m.stream(), None)),
    ("cuStreamGetCtx", "Stream Management", lambda m: (m.stream(), None)),
    ("cuStreamIsCapturing", "Stream Management", lambda m: (m.stream(), None)),
    ("cuEventCreate", "Event Management", lambda m: (None, 0)),
    ("cuMemAlloc", "Memory Management", lambda m: (None, 64)),
    ("cuMemHostAlloc", "Memory Management", lambda m: (None, 64, 0)),
    ("cuMemAllocHost_v2", "Memory Management", lambda m: (None, 64)),
    ("cuMemAllocManaged", "Memory Management", lambda m: (None, 64, 1)),
    ("cuModuleLoadData", "Module Management", lambda m: (None, PTX)),
    ("cuModuleGetFunction", "Module Management", lambda m: (None, _module(m), b"nothing")),
    ("cuFuncGetAttribute", "Execution Control", lambda m: (None, 0, m.function())),
    ("cuPointerGetAttribute", "Unified Addressing", lambda m: (None, 2, m.memory())),
    (
        "cuOccupancyMaxActiveBlocksPerMultiprocessor", "Occupancy", lambda m: (None, m.function(), 32, 0)
    ),
    ("cuGraphCreate", "Graph Management", lambda m: (None, 0)),
    ("cuGetErrorString", "Error Handling", lambda m: (1, None)),
    ("cuGetErrorName", "Error Handling", lambda m: (1, None)),
)  # fmt: skip
for function, section, arguments in CUDA:
    answers(1, function, section, REFUSED, arguments)

answers(1, "cuModuleLoadData", "Module Management", "The image must not be NULL.", lambda m: (out(word()), None))
answers(
    1, "cuModuleGetFunction", "Module Management", "The name must not be NULL.",
    lambda m: (out(word()), _module(m), None),
)  # fmt: skip
answers(
    0, "cuModuleGetGlobal", "Module Management", "Address and size are optional: without the address.",
    lambda m: (None, out(word()), _module(m), b"counter"),
)  # fmt: skip
answers(
    0, "cuModuleGetGlobal", "Module Management", "Address and size are optional: without the size.",
    lambda m: (out(word()), None, _module(m), b"counter"),
)  # fmt: skip
answers(
    0, "cuMemGetAddressRange", "Memory Management", "Base and size are optional: without the base.",
    lambda m: (None, out(word()), m.memory()),
)  # fmt: skip
answers(
    0, "cuMemGetAddressRange", "Memory Management", "Base and size are optional: without the size.",
    lambda m: (out(word()), None, m.memory()),
)  # fmt: skip
answers(
    0, "cuCtxGetStreamPriorityRange", "Context Management", "A bound that is not wanted may be NULL: the least.",
    lambda m: (None, out(word())),
)  # fmt: skip
answers(
    0, "cuCtxGetStreamPriorityRange", "Context Management", "A bound that is not wanted may be NULL: the greatest.",
    lambda m: (out(word()), None),
)  # fmt: skip
answers(0, "cuStreamSynchronize", "Stream Management", "The NULL stream is the default stream.", lambda m: (None,))
answers(0, "cuStreamQuery", "Stream Management", "The NULL stream is the default stream.", lambda m: (None,))
answers(0, "cuEventRecord", "Event Management", "The NULL stream is the default stream.", lambda m: (m.event(), None))
answers(
    0, "cuLaunchKernel", "Execution Control", "Parameters may be NULL for a kernel that has none.",
    lambda m: (m.function("nothing"), 1, 1, 1, 1, 1, 1, 0, 0, None, None),
)  # fmt: skip


@TABLE.row(
    "cuGraphGetNodes", "Graph Management", "Without room for nodes it counts them.", {"cuGraphGetNodes": always(0)}
)
def _count_nodes(m: Machine) -> None:
    graph, count = m.made("cuGraphCreate", 0), word()
    m.made("cuGraphAddEmptyNode", graph, None, 0)
    m.ok("cuGraphGetNodes", graph, None, out(count))
    assert count.value == 1


@TABLE.row(
    "cuGraphAddEmptyNode", "Graph Management", "Dependencies may be NULL where their number is 0.",
    {"cuGraphAddEmptyNode": always(1)},
)  # fmt: skip
def _no_dependencies(m: Machine) -> None:
    m.made("cuGraphAddEmptyNode", m.made("cuGraphCreate", 0), None, 0)


@TABLE.row(
    "cuCtxSetCurrent", "Context Management", "NULL takes the current context away.", {"cuCtxSetCurrent": always(0)}
)
def _no_context(m: Machine) -> None:
    m.ok("cuCtxSetCurrent", None)
    current = word(1)
    m.ok("cuCtxGetCurrent", out(current))
    m.ok("cuCtxPushCurrent", m.context)
    assert current.value == 0


NVML: tuple[tuple[str, Callable[[Machine], tuple[object, ...]]], ...] = (
    ("nvmlDeviceGetCount_v2", lambda m: (None,)),
    ("nvmlDeviceGetHandleByIndex_v2", lambda m: (0, None)),
    ("nvmlDeviceGetHandleByUUID", lambda m: (None, out(word()))),
    ("nvmlDeviceGetName", lambda m: (_device(m), None, 96)),
    ("nvmlDeviceGetMemoryInfo", lambda m: (_device(m), None)),
    ("nvmlDeviceGetUtilizationRates", lambda m: (_device(m), None)),
    ("nvmlDeviceGetIndex", lambda m: (_device(m), None)),
    ("nvmlDeviceGetPciInfo_v3", lambda m: (_device(m), None)),
    ("nvmlSystemGetCudaDriverVersion_v2", lambda m: (None,)),
    ("nvmlSystemGetDriverVersion", lambda m: (None, 80)),
)
for nvml_function, given in NVML:
    answers(2, nvml_function, "NVML: Device Queries", "A NULL argument is invalid.", given)
answers(
    2, "nvmlDeviceGetMemoryInfo", "NVML: Device Queries", "A device of NULL is invalid.",
    lambda m: (None, (ctypes.c_uint64 * 3)()),
)  # fmt: skip
