"""How long things live, and who ends them."""

from __future__ import annotations

import ctypes
from typing import Any

from documented.driver import PTX, Library, Machine, in_thread, out, word
from documented.row import Table, always, first_of, late_at, only_first, remembered, tells, twice
from documented.rows.errors import _device

TABLE = Table("lifetimes")
row = TABLE.row
MEMORY, STREAMS, EVENTS = "Memory Management", "Stream Management", "Event Management"
CONTEXTS, PRIMARY, GRAPHS = "Context Management", "Primary Context Management", "Graph Management"
POOLS, VIRTUAL, NVML_START = "Stream Ordered Memory Allocator", "Virtual Memory", "NVML: Initialization and Cleanup"


def _half(m: Machine) -> int:
    free, total = word(), word()
    m.ok("cuMemGetInfo", out(free), out(total))
    return free.value * 6 // 10 // 4096 * 4096


@row("cuMemFree", MEMORY, "Memory that was freed can be allocated again at once.", {"cuMemFree": always(0)})
def _freed(m: Machine) -> None:
    size = _half(m)
    for _ in range(3):
        m.ok("cuMemFree", m.made("cuMemAlloc", size))


@row("cuMemFree", MEMORY, "What was freed is no allocation any more.", {"cuMemFree": always(0)})
def _freed_twice(m: Machine) -> None:
    address = m.memory()
    m.ok("cuMemFree", address)
    assert m.cuda.cuMemFree(address) == 1


@row("cuMemFreeHost", MEMORY, "Page-locked memory is unknown when it was freed.", {"cuMemFreeHost": always(0)})
def _freed_host(m: Machine) -> None:
    address = m.made("cuMemAllocHost_v2", 4096)
    m.ok("cuMemFreeHost", address)
    assert m.cuda.cuMemFreeHost(address) != 0


@row("cuMemHostUnregister", MEMORY, "Pages can be registered again afterwards.", {"cuMemHostUnregister": always(0)})
def _registered_again(m: Machine) -> None:
    pages = ctypes.create_string_buffer(8192)
    for _ in range(2):
        m.ok("cuMemHostRegister", pages, 8192, 0)
        m.ok("cuMemHostUnregister", pages)


@row("cuMemHostUnregister", MEMORY, "The pages are ordinary memory afterwards.", {"cuMemHostUnregister": always(0)})
def _unregistered(m: Machine) -> None:
    pages = ctypes.create_string_buffer(8192)
    m.ok("cuMemHostRegister", pages, 8192, 0)
    m.ok("cuMemHostUnregister", pages)
    assert m.cuda.cuMemHostUnregister(pages) == 713


@row(
    "cuStreamDestroy", STREAMS, "It returns at once while there is work, which then still ends.",
    {"cuStreamDestroy": late_at("cuStreamDestroy")},
)  # fmt: skip
def _stream_with_work(m: Machine) -> None:
    address, holder, stream = m.memory(), m.stream(), m.stream()
    behind = m.event()

    def destroy() -> int:
        m.ok("cuEventRecord", behind, holder)
        m.ok("cuStreamWaitEvent", stream, behind, 0)
        m.ok("cuMemsetD32Async", address, 5, 1, stream)
        return m.cuda.cuStreamDestroy(stream)

    assert m.returns_at_once(holder, destroy)
    m.ok("cuCtxSynchronize")
    assert m.look(address) == 5


@row(
    "cuEventDestroy", EVENTS, "It returns at once while the event's work has not ended.",
    {"cuEventDestroy": late_at("cuEventDestroy")},
)  # fmt: skip
def _event_with_work(m: Machine) -> None:
    event, stream = m.event(), m.stream()

    def destroy() -> int:
        m.ok("cuEventRecord", event, stream)
        return m.cuda.cuEventDestroy(event)

    assert m.returns_at_once(stream, destroy)


@row("cuCtxDestroy", CONTEXTS, "A current context is also popped.", {"cuCtxDestroy": always(0)})
def _popped(m: Machine) -> None:
    other = m.made("cuCtxCreate", 0, 0)
    m.ok("cuCtxDestroy", other)
    current = word()
    m.ok("cuCtxGetCurrent", out(current))
    assert current.value == m.context


@row("cuCtxDestroy", CONTEXTS, "Where it stays current, calls say that it is destroyed.", {"cuCtxDestroy": always(0)})
def _destroyed_elsewhere(m: Machine) -> None:
    other = m.made("cuCtxCreate", 0, 0)
    code = in_thread(lambda: m.cuda.cuCtxDestroy(other))
    found = m.cuda.cuMemAlloc(out(word()), 64)
    m.ok("cuCtxPopCurrent", out(word()))
    assert (code, found) == (0, 709), (code, found)


@row("cuCtxDestroy", CONTEXTS, "Memory of the context is freed with it.", {"cuCtxDestroy": always(0)})
def _memory_of_a_context(m: Machine) -> None:
    size = _half(m)
    for _ in range(2):
        other = m.made("cuCtxCreate", 0, 0)
        m.made("cuMemAlloc", size)
        m.ok("cuCtxDestroy", other)


@row("cuCtxPopCurrent", CONTEXTS, "The context below becomes current again.", {"cuCtxPopCurrent": always(0)})
def _stack(m: Machine) -> None:
    other = m.made("cuCtxCreate", 0, 0)
    popped, current = word(), word()
    m.ok("cuCtxPopCurrent", out(popped))
    m.ok("cuCtxGetCurrent", out(current))
    m.cuda.cuCtxPopCurrent(out(word())) if current.value == other else None
    m.ok("cuCtxDestroy", other)
    assert (popped.value, current.value) == (other, m.context)


@row("cuCtxSetCurrent", CONTEXTS, "It replaces the top of the stack, not more.", {"cuCtxSetCurrent": always(0)})
def _replaced(m: Machine) -> None:
    other = m.made("cuCtxCreate", 0, 0)
    m.ok("cuCtxSetCurrent", m.context)
    found, below = word(), word()
    m.ok("cuCtxGetCurrent", out(found))
    m.ok("cuCtxPopCurrent", out(word()))
    m.ok("cuCtxGetCurrent", out(below))
    m.ok("cuCtxDestroy", other)
    assert (found.value, below.value) == (m.context, m.context)


@row(
    "cuDevicePrimaryCtxRetain", PRIMARY, "Each call answers the same context.",
    {"cuDevicePrimaryCtxRetain": first_of("cuDevicePrimaryCtxRetain", 99)},
)  # fmt: skip
def _one_primary(m: Machine) -> None:
    found = m.made("cuDevicePrimaryCtxRetain", 0)
    m.ok("cuDevicePrimaryCtxRelease", 0)
    assert found == m.context


def _active(m: Machine) -> int:
    flags, active = ctypes.c_uint32(), ctypes.c_int32(7)
    m.ok("cuDevicePrimaryCtxGetState", 0, out(flags), out(active))
    return active.value


@row(
    "cuDevicePrimaryCtxRelease", PRIMARY, "The context lives until it is released as often as it was retained.",
    {"cuDevicePrimaryCtxRelease": twice("cuDevicePrimaryCtxRelease")}, alone=True,
)  # fmt: skip
def _counted(m: Machine) -> None:
    m.made("cuDevicePrimaryCtxRetain", 0)
    m.ok("cuDevicePrimaryCtxRelease", 0)
    assert _active(m) == 1
    m.memory()


@row(
    "cuDevicePrimaryCtxRelease", PRIMARY, "With the last release it is inactive.",
    {"cuDevicePrimaryCtxRelease": always(0)}, alone=True,
)  # fmt: skip
def _inactive(m: Machine) -> None:
    m.ok("cuDevicePrimaryCtxRelease", 0)
    assert _active(m) == 0


@row(
    "cuDevicePrimaryCtxRelease", PRIMARY, "One release too many is an invalid context.",
    {"cuDevicePrimaryCtxRelease": always(0)}, alone=True,
)  # fmt: skip
def _released_too_often(m: Machine) -> None:
    m.ok("cuDevicePrimaryCtxRelease", 0)
    assert m.cuda.cuDevicePrimaryCtxRelease(0) == 201


@row(
    "cuDevicePrimaryCtxRelease", PRIMARY, "Memory of the context is freed with it.",
    {"cuDevicePrimaryCtxRelease": always(0)}, alone=True,
)  # fmt: skip
def _memory_of_the_primary(m: Machine) -> None:
    size = _half(m)
    m.made("cuMemAlloc", size)
    m.ok("cuDevicePrimaryCtxRelease", 0)
    m.ok("cuCtxSetCurrent", m.made("cuDevicePrimaryCtxRetain", 0))
    m.made("cuMemAlloc", size)


@row("cuEventQuery", EVENTS, "An event that was never recorded is complete.", {"cuEventQuery": always(600)})
def _never_recorded(m: Machine) -> None:
    m.ok("cuEventQuery", m.event())


@row("cuEventSynchronize", EVENTS, "It returns at once for an event that was never recorded.",
     {"cuEventSynchronize": always(400)})  # fmt: skip
def _wait_for_nothing(m: Machine) -> None:
    m.ok("cuEventSynchronize", m.event())


@row(
    "cuEventRecord",
    EVENTS,
    "A second record overwrites what the first captured.",
    {"cuEventRecord": only_first("cuEventRecord")},
)
def _recorded_again(m: Machine) -> None:
    event, stream = m.event(), m.stream()
    m.ok("cuEventRecord", event, stream)
    m.ok("cuStreamSynchronize", stream)
    with m.held(stream):
        m.ok("cuEventRecord", event, stream)
        assert m.cuda.cuEventQuery(event) == 600


@row(
    "cuModuleLoadData", "Module Management", "Each load of an image has variables of its own.",
    {"cuModuleLoadData": remembered("cuModuleLoadData")},
)  # fmt: skip
def _two_modules(m: Machine) -> None:
    places = []
    for _ in range(2):
        place = word()
        m.ok("cuModuleGetGlobal", out(place), None, m.made("cuModuleLoadData", PTX), b"counter")
        places.append(place.value)
    assert places[0] != places[1]


@row(
    "cuModuleLoadData", "Module Management", "The image is not needed any more when the call has returned.",
    {"cuModuleLoadData": always(218)},
)  # fmt: skip
def _image_gone(m: Machine) -> None:
    image = ctypes.create_string_buffer(PTX)
    module = m.made("cuModuleLoadData", image)
    ctypes.memset(image, 0, len(PTX))
    address = m.memory()
    assert m.launch(m.made("cuModuleGetFunction", module, b"add_one"), address, 0) == 0
    m.ok("cuCtxSynchronize")
    assert m.look(address) == 1


@row("cuModuleUnload", "Module Management", "A variable's memory goes with its module.", {"cuModuleUnload": always(0)})
def _unloaded(m: Machine) -> None:
    module, place = m.made("cuModuleLoadData", PTX), word()
    m.ok("cuModuleGetGlobal", out(place), None, module, b"counter")
    m.ok("cuModuleUnload", module)
    assert m.cuda.cuMemcpyDtoH(m.host(), place.value, 4) != 0


@row("cuStreamGetCtx", STREAMS, "A stream stays its context's, whatever is current.",
     {"cuStreamGetCtx": lambda real, stream, place: real.cuCtxGetCurrent(place)})  # fmt: skip
def _context_of_a_stream(m: Machine) -> None:
    stream, found = m.stream(), word()
    other = m.made("cuCtxCreate", 0, 0)
    m.ok("cuStreamGetCtx", stream, out(found))
    m.ok("cuCtxDestroy", other)
    assert found.value == m.context


def _graph(m: Machine) -> tuple[int, int]:
    """A graph with a node that sets a word to 9, and the word."""
    address, stream, graph = m.memory(), m.stream(), word()
    m.ok("cuStreamBeginCapture", stream, 2)
    m.ok("cuMemsetD32Async", address, 9, 1, stream)
    m.ok("cuStreamEndCapture", stream, out(graph))
    return graph.value, address


@row(
    "cuGraphDestroy", GRAPHS, "What was instantiated of it stays.",
    {"cuGraphLaunch": always(1)},
)  # fmt: skip
def _graph_gone(m: Machine) -> None:
    graph, address = _graph(m)
    executable, stream = m.made("cuGraphInstantiate", graph, 0), m.stream()
    m.ok("cuGraphDestroy", graph)
    m.ok("cuGraphLaunch", executable, stream)
    m.ok("cuStreamSynchronize", stream)
    assert m.look(address) == 9


@row("cuGraphInstantiate", GRAPHS, "A node added afterwards is not in it.", {
    "cuGraphLaunch": lambda real, executable, stream: real.cuGraphLaunch(executable, stream) or real.cuGraphLaunch(
        executable, stream
    )
})  # fmt: skip
def _snapshot(m: Machine) -> None:
    calls: list[int] = []
    stream, graph = m.stream(), word()
    m.ok("cuStreamBeginCapture", stream, 2)
    m.ok("cuLaunchHostFunc", stream, m.call(lambda: calls.append(1)), None)
    m.ok("cuStreamEndCapture", stream, out(graph))
    executable = m.made("cuGraphInstantiate", graph.value, 0)
    m.made("cuGraphAddEmptyNode", graph.value, None, 0)
    m.ok("cuGraphLaunch", executable, stream)
    m.ok("cuStreamSynchronize", stream)
    assert calls == [1]


def _the_same(_real: Library, place: Any, graph: int) -> int:
    place._obj.value = graph
    return 0


@row("cuGraphClone", GRAPHS, "A clone does not change with its original.",
     {"cuGraphClone": _the_same})  # fmt: skip
def _clone(m: Machine) -> None:
    graph, _ = _graph(m)
    clone, count = m.made("cuGraphClone", graph), word()
    m.made("cuGraphAddEmptyNode", graph, None, 0)
    m.ok("cuGraphGetNodes", clone, None, out(count))
    assert count.value == 1


@row("cuLaunchKernel", "Execution Control", "Parameters are copied in the call.", {"cuLaunchKernel": always(0)})
def _parameters(m: Machine) -> None:
    function, first, second, stream = m.function(), m.memory(), m.memory(), m.stream()
    pointer = word(first)
    with m.held(stream):
        m.ok(
            "cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream,
            (ctypes.c_void_p * 1)(ctypes.addressof(pointer)), None,
        )  # fmt: skip
        pointer.value = second
    assert (m.look(first), m.look(second)) == (1, 0)


@row("cuMemFreeAsync", POOLS, "Memory can be used by what the stream does before it is freed.",
     {"cuMemFreeAsync": always(1)})  # fmt: skip
def _freed_in_order(m: Machine) -> None:
    stream, found = m.stream(), m.host()
    address = m.made("cuMemAllocAsync", 4096, stream)
    m.ok("cuMemsetD32Async", address, 6, 1, stream)
    m.ok("cuMemcpyDtoHAsync", found, address, 4, stream)
    m.ok("cuMemFreeAsync", address, stream)
    m.ok("cuStreamSynchronize", stream)
    assert found[0] == 6


@row("cuMemFreeAsync", POOLS, "Freed memory serves the next allocation of the stream.", {"cuMemFreeAsync": always(0)})
def _pool_serves_again(m: Machine) -> None:
    stream, size = m.stream(), _half(m)
    for _ in range(3):
        m.ok("cuMemFreeAsync", m.made("cuMemAllocAsync", size, stream), stream)
    m.ok("cuStreamSynchronize", stream)


@row("cuMemFree", MEMORY, "It also frees what a pool allocated.", {"cuMemFree": always(1)})
def _freed_by_the_other(m: Machine) -> None:
    stream = m.stream()
    address = m.made("cuMemAllocAsync", 4096, stream)
    m.ok("cuStreamSynchronize", stream)
    m.ok("cuMemFree", address)


@row("cuMemRelease", VIRTUAL, "Mapped memory stays until it is unmapped.", {
    "cuMemRelease": lambda real, handle: real.cuMemRelease(handle) or 1
})  # fmt: skip
def _released_while_mapped(m: Machine) -> None:
    size = 2 << 20
    # CUmemAllocationProp: pinned, no handle type, at device 0.
    properties = (ctypes.c_uint32 * 8)(1, 0, 1, 0)
    handle = m.made("cuMemCreate", size, properties, 0)
    address = m.made("cuMemAddressReserve", size, 0, 0, 0)
    m.ok("cuMemMap", address, size, 0, handle, 0)
    m.ok("cuMemRelease", handle)
    m.ok("cuMemSetAccess", address, size, (ctypes.c_uint32 * 3)(1, 0, 3), 1)
    m.ok("cuMemsetD32", address, 4, 1)
    m.ok("cuCtxSynchronize")
    assert m.look(address) == 4
    m.ok("cuMemUnmap", address, size)
    m.ok("cuMemAddressFree", address, size)


@row("nvmlShutdown", NVML_START, "As many calls are needed as there were of nvmlInit.",
     {"nvmlShutdown": twice("nvmlShutdown")}, alone=True)  # fmt: skip
def _nvml_counted(m: Machine) -> None:
    assert m.nvml.nvmlInit_v2() == 0
    assert m.nvml.nvmlShutdown() == 0
    assert m.nvml.nvmlDeviceGetCount_v2(out(word())) == 0


@row("nvmlShutdown", NVML_START, "The last one ends it.", {"nvmlShutdown": always(0)}, alone=True)
def _nvml_ended(m: Machine) -> None:
    assert m.nvml.nvmlShutdown() == 0
    assert m.nvml.nvmlDeviceGetCount_v2(out(word())) == 1


@row("nvmlInit_v2", NVML_START, "It starts again after a shutdown.", {"nvmlInit_v2": always(0)}, alone=True)
def _nvml_again(m: Machine) -> None:
    assert m.nvml.nvmlShutdown() == 0
    assert m.nvml.nvmlInit_v2() == 0
    assert m.nvml.nvmlDeviceGetCount_v2(out(word())) == 0


@row("nvmlDeviceGetHandleByIndex_v2", "NVML: Device Queries", "A device has one handle while NVML runs.",
     {"nvmlDeviceGetHandleByIndex_v2": tells(iter(range(1, 99)), 1)})  # fmt: skip
def _one_handle(m: Machine) -> None:
    assert _device(m) == _device(m)
