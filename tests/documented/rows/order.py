"""The order of work: which operations come before which."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from documented.driver import (
    LEGACY,
    NON_BLOCKING,
    PER_THREAD,
    STREAM_CALLBACK,
    Broken,
    Library,
    Machine,
    OneKept,
    out,
    word,
)
from documented.row import Table, always, early, swapped

TABLE = Table("order")
row = TABLE.row
MEMORY, STREAMS, EVENTS = "Memory Management", "Stream Management", "Event Management"
LAUNCHES, GRAPHS, POOLS = "Execution Control", "Graph Management", "Stream Ordered Memory Allocator"
DEFAULT = "Stream synchronization behavior"


class _Copy2D(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("srcXInBytes", "srcY")),
        ("srcMemoryType", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("srcHost", "srcDevice", "srcArray", "srcPitch", "dstXInBytes", "dstY")),
        ("dstMemoryType", ctypes.c_uint32),
        *(
            (name, ctypes.c_uint64)
            for name in ("dstHost", "dstDevice", "dstArray", "dstPitch", "WidthInBytes", "Height")
        ),
    )


def _copied_2d(m: Machine, address: int, stream: int) -> int:
    source = m.memory(4096, 5)
    copy = _Copy2D(
        srcMemoryType=2, srcDevice=source, srcPitch=4, dstMemoryType=2, dstDevice=address, dstPitch=4,
        WidthInBytes=4, Height=1,
    )  # fmt: skip
    return m.cuda.cuMemcpy2DAsync_v2(out(copy), stream)


# Work that makes a word 5 (a launch: by adding 1 to 4), with the place of its stream among the arguments.
Work = Callable[[Machine, int, int], int]
WORK: dict[str, tuple[str, int, Work]] = {
    "cuMemsetD8Async": (MEMORY, 3, lambda m, address, stream: m.cuda.cuMemsetD8Async(address, 5, 1, stream)),
    "cuMemsetD16Async": (MEMORY, 3, lambda m, address, stream: m.cuda.cuMemsetD16Async(address, 5, 1, stream)),
    "cuMemsetD32Async": (MEMORY, 3, lambda m, address, stream: m.cuda.cuMemsetD32Async(address, 5, 1, stream)),
    "cuMemsetD2D8Async": (
        MEMORY, 5, lambda m, address, stream: m.cuda.cuMemsetD2D8Async(address, 64, 5, 1, 1, stream),
    ),
    "cuMemsetD2D32Async": (
        MEMORY, 5, lambda m, address, stream: m.cuda.cuMemsetD2D32Async(address, 64, 5, 1, 1, stream),
    ),
    "cuMemcpyHtoDAsync": (
        MEMORY, 3, lambda m, address, stream: m.cuda.cuMemcpyHtoDAsync(address, m.host(4096, 5), 4, stream),
    ),
    "cuMemcpyDtoDAsync": (
        MEMORY, 3, lambda m, address, stream: m.cuda.cuMemcpyDtoDAsync(address, m.memory(4096, 5), 4, stream),
    ),
    "cuMemcpyAsync": (
        MEMORY, 3, lambda m, address, stream: m.cuda.cuMemcpyAsync(address, m.memory(4096, 5), 4, stream),
    ),
    "cuMemcpyPeerAsync": (
        MEMORY, 5,
        lambda m, address, stream: m.cuda.cuMemcpyPeerAsync(
            address, m.context, m.memory(4096, 5), m.context, 4, stream
        ),
    ),
    "cuMemcpy2DAsync_v2": (MEMORY, 1, _copied_2d),
    "cuStreamWriteValue32": (
        "Stream Memory Operations", 0, lambda m, address, stream: m.cuda.cuStreamWriteValue32(stream, address, 5, 0),
    ),
    "cuLaunchKernel": (LAUNCHES, 8, lambda m, address, stream: _launched(m, address, stream)),
    "cuGraphLaunch": (GRAPHS, 1, lambda m, address, stream: m.cuda.cuGraphLaunch(_graph(m, address), stream)),
}  # fmt: skip


def _launched(m: Machine, address: int, stream: int) -> int:
    return m.launch(m.function(), address, stream)


def _graph(m: Machine, address: int) -> int:
    stream, graph = m.stream(), word()
    m.ok("cuStreamBeginCapture", stream, 2)
    m.ok("cuMemsetD32Async", address, 5, 1, stream)
    m.ok("cuStreamEndCapture", stream, out(graph))
    return m.made("cuGraphInstantiate", graph.value, 0)


def prepared(m: Machine, function: str, address: int, stream: int) -> Callable[[], int]:
    """Makes the arguments of an operation, which may wait for the device. Returns the call itself, to be made later."""
    kept = OneKept(m.cuda, function)
    WORK[function][2](replace(m, cuda=kept), address, stream)
    return kept.call


def _behind_earlier_work(function: str, section: str, stream_at: int) -> None:
    @row(function, section, "It begins when all earlier work of its stream has ended.",
         {function: early(function, stream_at)})  # fmt: skip
    def check(m: Machine) -> None:
        before = 4 if function == "cuLaunchKernel" else 0
        stream, address = m.stream(), m.memory(4096, before)
        call = prepared(m, function, address, stream)
        with m.held(stream):
            assert call() == 0
            assert m.look(address) == before
        assert m.look(address) == 5


def _before_later_work(function: str, section: str, work: Work) -> None:
    @row(function, section, "Later work of its stream sees what it wrote.", {function: always(0)})
    def check(m: Machine) -> None:
        stream, address, found = m.stream(), m.memory(4096, 4 if function == "cuLaunchKernel" else 0), m.host()
        assert work(m, address, stream) == 0
        m.ok("cuMemcpyDtoHAsync", found, address, 4, stream)
        m.ok("cuStreamSynchronize", stream)
        assert found[0] == 5


for name, (chapter, at, made) in WORK.items():
    _behind_earlier_work(name, chapter, at)
    _before_later_work(name, chapter, made)


@row("cuMemcpyDtoHAsync", MEMORY, "It begins when all earlier work of its stream has ended.",
     {"cuMemcpyDtoHAsync": early("cuMemcpyDtoHAsync", 3)})  # fmt: skip
def _copied_behind(m: Machine) -> None:
    stream, address, found = m.stream(), m.memory(), m.host()
    with m.held(stream):
        m.ok("cuMemsetD32Async", address, 5, 1, stream)
        m.ok("cuMemcpyDtoHAsync", found, address, 4, stream)
    assert found[0] == 5


@row("cuLaunchHostFunc", LAUNCHES, "It is called when all earlier work of its stream has ended.",
     {"cuLaunchHostFunc": early("cuLaunchHostFunc", 0)})  # fmt: skip
def _called_behind(m: Machine) -> None:
    stream, first, seen, found = m.stream(), m.stream(), [], m.host()
    event = m.event()
    with m.held(first):
        m.ok("cuEventRecord", event, first)
        m.ok("cuStreamWaitEvent", stream, event, 0)
        m.ok("cuMemcpyDtoHAsync", found, m.made("cuMemAlloc", 64), 4, stream)
        m.ok("cuLaunchHostFunc", stream, m.call(lambda: seen.append(m.cuda is not None)), None)
        m.ok("cuStreamQuery", m.stream())
        assert not seen
    m.ok("cuStreamSynchronize", stream)
    assert seen


@row("cuLaunchHostFunc", LAUNCHES, "Later work of the stream begins when it has returned.",
     {"cuMemsetD32Async": early("cuMemsetD32Async", 3)})  # fmt: skip
def _behind_a_call(m: Machine) -> None:
    stream, address = m.stream(), m.memory()
    with m.held(stream):
        m.ok("cuMemsetD32Async", address, 5, 1, stream)
        assert m.look(address) == 0


@row("cuLaunchHostFunc", LAUNCHES, "Host functions of a stream are called in the order of their calls.",
     {"cuLaunchHostFunc": swapped("cuLaunchHostFunc")})  # fmt: skip
def _calls_in_order(m: Machine) -> None:
    stream = m.stream()
    seen: list[int] = []
    for number in range(6):
        m.ok("cuLaunchHostFunc", stream, m.call(partial(seen.append, number)), None)
    m.ok("cuStreamSynchronize", stream)
    assert seen == list(range(6)), seen


@row("cuStreamAddCallback", STREAMS, "It is called behind earlier work, with that work's code.",
     {"cuStreamAddCallback": always(0)})  # fmt: skip
def _callback(m: Machine) -> None:
    stream, seen = m.stream(), []
    call = STREAM_CALLBACK(lambda _stream, code, _data: seen.append(code))
    m.ok("cuStreamAddCallback", stream, call, None, 0)
    m.ok("cuStreamSynchronize", stream)
    assert seen == [0]


@row("cuStreamWaitEvent", STREAMS, "Later work waits for the event.", {"cuStreamWaitEvent": always(0)})
def _waits_for_an_event(m: Machine) -> None:
    first, second, event, address = m.stream(), m.stream(), m.event(), m.memory()
    with m.held(first):
        m.ok("cuEventRecord", event, first)
        m.ok("cuStreamWaitEvent", second, event, 0)
        m.ok("cuMemsetD32Async", address, 5, 1, second)
        assert m.look(address) == 0
    m.ok("cuStreamSynchronize", second)
    assert m.look(address) == 5


def _waits_for_later_records() -> dict[str, Broken]:
    """A driver whose streams wait for any record of the event that comes."""
    waiting: list[int] = []

    def wait(_real: Library, stream: int, _event: int, _flags: int) -> int:
        waiting.append(stream)
        return 0

    def record(real: Library, event: int, stream: int) -> int:
        code = real.cuEventRecord(event, stream)
        for each in waiting:
            real.cuStreamWaitEvent(each, event, 0)
        return code

    return {"cuStreamWaitEvent": wait, "cuEventRecord": record}


@row("cuStreamWaitEvent", STREAMS, "It waits for the record that was the last one when it was called.",
     _waits_for_later_records())  # fmt: skip
def _the_last_record(m: Machine) -> None:
    first, second, event = m.stream(), m.stream(), m.event()
    m.ok("cuEventRecord", event, first)
    m.ok("cuStreamWaitEvent", second, event, 0)

    def record_again() -> int:
        m.ok("cuEventRecord", event, first)
        return m.cuda.cuStreamSynchronize(second)

    assert m.returns_at_once(first, record_again)


@row(
    "cuStreamWaitEvent",
    STREAMS,
    "An event that was never recorded is not waited for.",
    {"cuStreamWaitEvent": always(1)},
)
def _never_recorded(m: Machine) -> None:
    stream = m.stream()
    m.ok("cuStreamWaitEvent", stream, m.event(), 0)
    m.ok("cuStreamSynchronize", stream)


@row("cuEventRecord", EVENTS, "It captures earlier work only: what follows does not hold it.",
     {"cuEventQuery": lambda real, event: 600})  # fmt: skip
def _earlier_only(m: Machine) -> None:
    stream, event = m.stream(), m.event()
    m.ok("cuEventRecord", event, stream)
    m.ok("cuEventSynchronize", event)
    with m.held(stream):
        m.ok("cuEventQuery", event)


@row(
    "cuEventElapsedTime",
    EVENTS,
    "What was recorded later in a stream was not earlier in time.",
    {"cuEventElapsedTime": lambda real, place, first, second: real.cuEventElapsedTime(place, second, first)},
)
def _no_time_backwards(m: Machine) -> None:
    stream, first, second, time = m.stream(), m.event(), m.event(), ctypes.c_float()
    m.ok("cuEventRecord", first, stream)
    for _ in range(50):
        m.ok("cuMemsetD8Async", m.memory(1 << 16), 1, 1 << 16, stream)
    m.ok("cuEventRecord", second, stream)
    m.ok("cuEventSynchronize", second)
    m.ok("cuEventElapsedTime", out(time), first, second)
    assert time.value > 0, time.value


def _unblocked(real: Library, place: object, flags: int) -> int:
    return real.cuStreamCreate(place, flags ^ NON_BLOCKING)


def _default_waits(default: int, called: str) -> None:
    @row("cuStreamCreate", DEFAULT, f"The {called} default stream waits for streams that are not non-blocking.",
         {"cuStreamCreate": _unblocked})  # fmt: skip
    def waiting(m: Machine) -> None:
        stream, address = m.stream(0), m.memory()
        with m.held(stream):
            m.ok("cuMemsetD32Async", address, 5, 1, default)
            assert m.look(address) == 0
        m.ok("cuCtxSynchronize")
        assert m.look(address) == 5

    @row("cuStreamCreate", DEFAULT, f"The {called} default stream does not wait for a non-blocking one.",
         {"cuStreamCreate": _unblocked})  # fmt: skip
    def not_waiting(m: Machine) -> None:
        stream = m.stream(NON_BLOCKING)
        assert m.returns_at_once(
            stream,
            lambda: (
                m.cuda.cuMemsetD32Async(m.made("cuMemAlloc", 64), 5, 1, default) or m.cuda.cuStreamSynchronize(default)
            ),
        )


_default_waits(0, "NULL")
_default_waits(LEGACY, "legacy")


@row("cuStreamCreate", DEFAULT, "A stream that is not non-blocking waits for the legacy default stream.",
     {"cuMemsetD32Async": early("cuMemsetD32Async", 3)})  # fmt: skip
def _waits_for_the_default(m: Machine) -> None:
    stream, address = m.stream(0), m.memory()
    with m.held(LEGACY):
        m.ok("cuMemsetD32Async", address, 5, 1, stream)
        assert m.look(address) == 0
    m.ok("cuStreamSynchronize", stream)
    assert m.look(address) == 5


@row("CU_STREAM_PER_THREAD", DEFAULT, "A thread's default stream waits for the legacy one.",
     {"cuMemsetD32Async": early("cuMemsetD32Async", 3)})  # fmt: skip
def _thread_waits(m: Machine) -> None:
    address = m.memory()
    with m.held(LEGACY):
        m.ok("cuMemsetD32Async", address, 5, 1, PER_THREAD)
        assert m.look(address) == 0
    m.ok("cuStreamSynchronize", PER_THREAD)
    assert m.look(address) == 5


def _other_pool(real: Library, place: object, size: int, stream: int) -> int:
    return (real.cuMemAllocAsync(place, size, stream) and 0) or real.cuMemAlloc(place, 0)


@row("cuMemAllocAsync", POOLS, "Its address can be used at once in later work of the stream.",
     {"cuMemAllocAsync": _other_pool})  # fmt: skip
def _allocated_in_order(m: Machine) -> None:
    stream, found = m.stream(), m.host()
    with m.held(stream):
        address = m.made("cuMemAllocAsync", 4096, stream)
        m.ok("cuMemsetD32Async", address, 5, 1, stream)
        m.ok("cuMemcpyDtoHAsync", found, address, 4, stream)
    assert found[0] == 5


@row("cuGraphAddDependencies", GRAPHS, "A node begins when those it depends on have ended.",
     {"cuGraphAddDependencies_v2": always(0)})  # fmt: skip
def _nodes_in_order(m: Machine) -> None:
    seen: list[int] = []
    graph, nodes, kept = m.made("cuGraphCreate", 0), [], []
    for number in (1, 2):
        parameters = (ctypes.c_void_p * 2)(ctypes.cast(m.call(partial(seen.append, number)), ctypes.c_void_p), None)
        kept.append(parameters)
        nodes.append(m.made("cuGraphAddHostNode", graph, None, 0, parameters))
    # The second one first.
    m.ok("cuGraphAddDependencies_v2", graph, out(word(nodes[1])), out(word(nodes[0])), None, 1)
    stream, executable = m.stream(), m.made("cuGraphInstantiate", graph, 0)
    for _ in range(3):
        m.ok("cuGraphLaunch", executable, stream)
    m.ok("cuStreamSynchronize", stream)
    assert seen == [2, 1] * 3, seen
