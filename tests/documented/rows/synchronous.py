"""Which calls return only when work has ended, and which never wait for it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

from documented.driver import PER_THREAD, Machine, out, word
from documented.row import Table, late, late_at, unawaited
from documented.rows.order import WORK, prepared

TABLE = Table("synchronous")
MEMORY, STREAMS, EVENTS = "Memory Management", "Stream Management", "Event Management"
CONTEXTS, POOLS, LAUNCHES = "Context Management", "Stream Ordered Memory Allocator", "Execution Control"
BEHAVIOUR = "API synchronization behavior"

# Prepares, and answers the call and the stream whose work is held.
Prepared = tuple[int, Callable[[], int]]


def _waits(function: str, section: str, says: str, prepare: Callable[[Machine], Prepared]) -> None:
    @TABLE.row(function, section, says, {function: unawaited(function)})
    def check(m: Machine) -> None:
        stream, call = prepare(m)
        assert m.waits(stream, call), "it returned while the work was held"


def _never_waits(
    function: str, section: str, says: str, prepare: Callable[[Machine], Prepared], destroys: bool = False
) -> None:
    @TABLE.row(function, section, says, {function: (late_at if destroys else late)(function)})
    def check(m: Machine) -> None:
        stream, call = prepare(m)
        assert m.returns_at_once(stream, call), "it waited for the work that was held"


def _of(m: Machine, function: str, *arguments: object) -> Callable[[], int]:
    return lambda: int(getattr(m.cuda, function)(*arguments))


def _with_new_stream(function: str, flags: int = 1) -> Callable[[Machine], Prepared]:
    def prepare(m: Machine) -> Prepared:
        stream = m.stream(flags)
        return stream, _of(m, function, stream)

    return prepare


_waits("cuStreamSynchronize", STREAMS, "It waits until the stream has done all its work.",
       _with_new_stream("cuStreamSynchronize"))  # fmt: skip
_waits("cuStreamSynchronize", STREAMS, "So it does for a stream of the default kind.",
       _with_new_stream("cuStreamSynchronize", 0))  # fmt: skip
_waits("cuStreamSynchronize", STREAMS, "So it does for the NULL stream.",
       lambda m: (0, _of(m, "cuStreamSynchronize", 0)))  # fmt: skip
_waits("cuStreamSynchronize", STREAMS, "So it does for a thread's default stream.",
       lambda m: (PER_THREAD, _of(m, "cuStreamSynchronize", PER_THREAD)))  # fmt: skip


def _behind_the_default(m: Machine) -> Prepared:
    address = m.memory()

    def call() -> int:
        m.ok("cuMemsetD8Async", address, 1, 1, 0)
        return int(m.cuda.cuStreamSynchronize(0))

    return m.stream(0), call


_waits("cuStreamSynchronize", STREAMS, "Work of the NULL stream ends behind that of streams of the default kind.",
       _behind_the_default)  # fmt: skip
_waits("cuCtxSynchronize", CONTEXTS, "It waits for the work of a non-blocking stream.",
       lambda m: (m.stream(1), _of(m, "cuCtxSynchronize")))  # fmt: skip
_waits("cuCtxSynchronize", CONTEXTS, "It waits for the work of a stream of the default kind.",
       lambda m: (m.stream(0), _of(m, "cuCtxSynchronize")))  # fmt: skip


def _event(flags: int) -> Callable[[Machine], Prepared]:
    def prepare(m: Machine) -> Prepared:
        stream, event = m.stream(), m.event(flags)

        def call() -> int:
            m.ok("cuEventRecord", event, stream)
            return int(m.cuda.cuEventSynchronize(event))

        return stream, call

    return prepare


for kind, flags in (("an event", 0), ("an event of blocking waits", 1), ("an event without times", 2)):
    _waits("cuEventSynchronize", EVENTS, f"It waits for the work that {kind} captured.", _event(flags))
_waits("cuMemcpyDtoH", BEHAVIOUR, "A copy to page-locked memory returns when it has ended, behind other streams too.",
       lambda m: (m.stream(0), _of(m, "cuMemcpyDtoH", m.host(), m.memory(), 4096)))  # fmt: skip
_waits("cuMemcpyDtoH", BEHAVIOUR, "A copy to pageable memory returns when it has ended, behind other streams too.",
       lambda m: (m.stream(0), _of(m, "cuMemcpyDtoH", (ctypes.c_char * 4096)(), m.memory(), 4096)))  # fmt: skip


def _to_device(m: Machine) -> Prepared:
    return m.stream(0), _of(m, "cuMemcpyHtoD", m.memory(), m.host(), 4096)


_waits("cuMemcpyHtoD", BEHAVIOUR, "A copy from page-locked memory returns when it has ended.", _to_device)


def _asynchronous(function: str) -> Callable[[Machine], Prepared]:
    def prepare(m: Machine) -> Prepared:
        stream = m.stream()
        return stream, prepared(m, function, m.memory(), stream)

    return prepare


for each in WORK:
    _never_waits(each, WORK[each][0], "It returns before the stream's earlier work has ended.", _asynchronous(each))


def _back(m: Machine) -> Prepared:
    stream = m.stream()
    return stream, _of(m, "cuMemcpyDtoHAsync", m.host(), m.memory(), 4096, stream)


_never_waits("cuMemcpyDtoHAsync", BEHAVIOUR, "A copy to page-locked memory returns before it has ended.", _back)


def _filled(function: str, m: Machine) -> Prepared:
    return m.stream(0), _of(m, function, m.memory(), 1, 16)


for each in ("cuMemsetD8", "cuMemsetD16", "cuMemsetD32"):
    _never_waits(each, BEHAVIOUR, "Filling device memory is asynchronous to the host, behind the default stream too.",
                 partial(_filled, each))  # fmt: skip
_never_waits("cuMemcpyDtoD", BEHAVIOUR, "A copy within device memory does not make the host wait.",
             lambda m: (m.stream(0), _of(m, "cuMemcpyDtoD", m.memory(), m.memory(), 64)))  # fmt: skip
_never_waits("cuEventRecord", EVENTS, "It returns before the stream's work has ended.",
             lambda m: (lambda stream: (stream, _of(m, "cuEventRecord", m.event(), stream)))(m.stream()))  # fmt: skip


def _wait_event(m: Machine) -> Prepared:
    stream, other, event = m.stream(), m.stream(), m.event()

    def call() -> int:
        m.ok("cuEventRecord", event, stream)
        return int(m.cuda.cuStreamWaitEvent(other, event, 0))

    return stream, call


_never_waits("cuStreamWaitEvent", STREAMS, "The stream waits, not the caller.", _wait_event)
_never_waits("cuLaunchHostFunc", LAUNCHES, "It returns before the function was called.",
             lambda m: (lambda stream: (stream, _of(m, "cuLaunchHostFunc", stream, m.call(lambda: None), None)))(
                 m.stream()))  # fmt: skip
_never_waits("cuMemAllocAsync", POOLS, "It returns before the stream's earlier work has ended.",
             lambda m: (lambda stream: (stream, _of(m, "cuMemAllocAsync", out(word()), 4096, stream)))(
                 m.stream()))  # fmt: skip


def _freed(m: Machine) -> Prepared:
    stream = m.stream()
    address = m.made("cuMemAllocAsync", 4096, stream)
    m.ok("cuStreamSynchronize", stream)
    return stream, _of(m, "cuMemFreeAsync", address, stream)


_never_waits("cuMemFreeAsync", POOLS, "It returns before the stream's earlier work has ended.", _freed)
_never_waits("cuStreamSynchronize", STREAMS, "It waits for no other stream's work.",
             lambda m: (m.stream(), _of(m, "cuStreamSynchronize", m.stream())))  # fmt: skip


def _queried(function: str) -> Callable[[Machine], Prepared]:
    def prepare(m: Machine) -> Prepared:
        stream, event = m.stream(), m.event()

        def call() -> int:
            m.ok("cuEventRecord", event, stream)
            code = int(getattr(m.cuda, function)(event if function == "cuEventQuery" else stream))
            return 0 if code == 600 else 1

        return stream, call

    return prepare


for each, chapter in (("cuEventQuery", EVENTS), ("cuStreamQuery", STREAMS)):
    _never_waits(each, chapter, "It answers that work is not ready, and does not wait for it.", _queried(each), True)
_never_waits("cuStreamCreate", STREAMS, "It waits for no work.",
             lambda m: (m.stream(), _of(m, "cuStreamCreate", out(word()), 1)))  # fmt: skip
_never_waits("cuEventCreate", EVENTS, "It waits for no work.",
             lambda m: (m.stream(), _of(m, "cuEventCreate", out(word()), 0)))  # fmt: skip
_never_waits("cuMemGetInfo", MEMORY, "It waits for no work.",
             lambda m: (m.stream(), _of(m, "cuMemGetInfo", out(word()), out(word()))))  # fmt: skip
_never_waits("cuPointerGetAttribute", "Unified Addressing", "It waits for no work.",
             lambda m: (m.stream(), _of(m, "cuPointerGetAttribute", out(word()), 2, m.memory())))  # fmt: skip
