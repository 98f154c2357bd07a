"""Streams, events and callbacks: order and waiting."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from softcuda import (
    CALLBACK,
    HOST_FUNCTION,
    INVALID_HANDLE,
    INVALID_VALUE,
    KERNELS,
    NOT_PERMITTED,
    NOT_READY,
    alloc,
    code,
    function,
    get,
    i32,
    launch,
    main,
    new,
    ok,
    pinned,
    ptr,
    put,
    ref,
    size,
    start,
    u32,
    u64,
)

DEFAULT, NON_BLOCKING, DISABLE_TIMING = 0, 1, 2
LEGACY, PER_THREAD = ptr(1), ptr(2)
keep: list[Any] = []


class Gate:
    """Holds a stream until it is opened."""

    def __init__(self, stream: Any) -> None:
        self._open = threading.Event()
        self._function = HOST_FUNCTION(lambda _: self._open.wait(30) and None)
        keep.append(self._function)
        ok("cuLaunchHostFunc", stream, self._function, None)

    def open(self) -> None:
        self._open.set()


def default_stream_waits_for_blocking_streams_and_they_for_it() -> None:
    start()
    p = alloc(4)
    blocking, free = new("cuStreamCreate", DEFAULT), new("cuStreamCreate", NON_BLOCKING)
    gate = Gate(blocking)
    ok("cuMemsetD32Async", u64(p), 1, size(1), None)  # default stream: behind the gate
    ok("cuMemsetD32Async", u64(p), 2, size(1), blocking)  # behind the default stream
    assert code("cuStreamQuery", None) == NOT_READY
    assert code("cuStreamQuery", LEGACY) == NOT_READY
    ok("cuMemsetD32Async", u64(p), 9, size(1), free)
    ok("cuStreamSynchronize", free)  # is not held up
    gate.open()
    ok("cuCtxSynchronize")
    assert get(p, 4) == bytes([2, 0, 0, 0])


def non_blocking_streams_ignore_the_default_stream() -> None:
    start()
    free = new("cuStreamCreate", NON_BLOCKING)
    gate = Gate(None)
    ok("cuMemsetD32Async", u64(alloc(4)), 9, size(1), free)
    ok("cuStreamSynchronize", free)
    assert code("cuStreamQuery", None) == NOT_READY
    gate.open()
    ok("cuStreamSynchronize", None)
    ok("cuStreamQuery", None)


def events_order_streams() -> None:
    start()
    p = alloc(4)
    first, second = new("cuStreamCreate", NON_BLOCKING), new("cuStreamCreate", NON_BLOCKING)
    event = new("cuEventCreate", 0)
    ok("cuEventQuery", event)  # never recorded: done
    gate = Gate(first)
    ok("cuMemsetD32Async", u64(p), 5, size(1), first)
    ok("cuEventRecord", event, first)
    ok("cuStreamWaitEvent", second, event, 0)
    out, view = pinned(4)
    ok("cuMemcpyDtoHAsync_v2", ptr(out), u64(p), size(4), second)
    assert code("cuEventQuery", event) == NOT_READY
    assert code("cuStreamQuery", second) == NOT_READY
    assert view.raw == bytes(4)
    gate.open()
    ok("cuEventSynchronize", event)
    ok("cuStreamSynchronize", second)
    assert view.raw == bytes([5, 0, 0, 0])


def events_are_queried_by_threads_without_a_context() -> None:
    """torch does this from the thread that pins a DataLoader's batches."""
    start()
    stream = new("cuStreamCreate", NON_BLOCKING)
    event = new("cuEventCreate", 0)
    gate = Gate(stream)
    ok("cuEventRecord", event, stream)
    answers: list[int] = []

    def ask() -> None:
        thread = threading.Thread(target=lambda: answers.append(code("cuEventQuery", event)))
        thread.start()
        thread.join()

    ask()
    gate.open()
    ok("cuStreamSynchronize", stream)
    ask()
    assert answers == [NOT_READY, 0]


def events_measure_time() -> None:
    start()
    begin, end = new("cuEventCreate", 0), new("cuEventCreate", 0)
    milliseconds = ctypes.c_float()
    assert code("cuEventElapsedTime", ref(milliseconds), begin, end) == INVALID_HANDLE, "not recorded"
    ok("cuEventRecord", begin, None)
    pause = threading.Event()
    nap = HOST_FUNCTION(lambda _: pause.wait(0.05) and None)
    ok("cuLaunchHostFunc", None, nap, None)
    ok("cuEventRecord", end, None)
    ok("cuEventSynchronize", end)
    ok("cuEventElapsedTime", ref(milliseconds), begin, end)
    assert milliseconds.value >= 50
    ok("cuEventElapsedTime_v2", ref(milliseconds), end, begin)
    assert milliseconds.value <= -50
    untimed = new("cuEventCreate", DISABLE_TIMING)
    ok("cuEventRecord", untimed, None)
    assert code("cuEventElapsedTime", ref(milliseconds), begin, untimed) == INVALID_HANDLE


def a_spinning_kernel_stops_no_other_stream() -> None:
    start()
    spin, store = function(KERNELS, "spin"), function(KERNELS, "store")
    flag, out = alloc(4), alloc(8)
    a, b = new("cuStreamCreate", NON_BLOCKING), new("cuStreamCreate", NON_BLOCKING)
    assert launch(spin, [u64(flag), u64(out)], stream=a) == 0
    for value in range(100):
        assert launch(store, [u64(out + 4), u32(value)], stream=b) == 0
    ok("cuStreamSynchronize", b)
    assert code("cuStreamQuery", a) == NOT_READY
    ok("cuMemcpyHtoDAsync_v2", u64(flag), bytes([7, 0, 0, 0]), size(4), b)
    ok("cuStreamSynchronize", a)
    assert get(out, 8) == bytes([7, 0, 0, 0, 99, 0, 0, 0])


def callbacks_run_in_order_and_may_not_call_cuda() -> None:
    start()
    stream = new("cuStreamCreate", DEFAULT)
    seen: list[Any] = []
    first = CALLBACK(lambda given, status, data: seen.append((given, status, data)))
    second = HOST_FUNCTION(lambda data: seen.append((data, code("cuMemAlloc_v2", ref(u64()), size(8)))))
    ok("cuStreamAddCallback", stream, first, ptr(11), 0)
    ok("cuLaunchHostFunc", stream, second, ptr(22))
    ok("cuStreamSynchronize", stream)
    assert seen == [(stream.value, 0, 11), (22, NOT_PERMITTED)]
    assert code("cuStreamAddCallback", stream, first, None, 1) == INVALID_VALUE


def pageable_sources_may_change_after_the_call_and_pinned_ones_not_before() -> None:
    start()
    stream = new("cuStreamCreate", NON_BLOCKING)
    p, q = alloc(4), alloc(4)
    pageable = ctypes.create_string_buffer(b"old!", 4)
    address, view = pinned(4)
    view.raw = b"old!"
    gate = Gate(stream)
    ok("cuMemcpyHtoDAsync_v2", u64(p), pageable, size(4), stream)
    ok("cuMemcpyHtoDAsync_v2", u64(q), ptr(address), size(4), stream)
    pageable.raw = b"new!"
    view.raw = b"new!"
    gate.open()
    ok("cuStreamSynchronize", stream)
    assert (get(p, 4), get(q, 4)) == (b"old!", b"new!")


def streams_and_events_may_be_destroyed_in_use() -> None:
    start()
    p = alloc(4)
    stream, event = new("cuStreamCreate", NON_BLOCKING), new("cuEventCreate", 0)
    gate = Gate(stream)
    ok("cuMemsetD32Async", u64(p), 3, size(1), stream)
    ok("cuEventRecord", event, stream)
    other = new("cuStreamCreate", NON_BLOCKING)
    ok("cuStreamWaitEvent", other, event, 0)
    ok("cuEventDestroy_v2", event)
    ok("cuStreamDestroy_v2", stream)
    assert code("cuStreamDestroy_v2", stream) == INVALID_HANDLE
    assert code("cuEventQuery", event) == INVALID_HANDLE
    gate.open()
    ok("cuStreamSynchronize", other)
    ok("cuCtxSynchronize")
    assert get(p, 4) == bytes([3, 0, 0, 0])


def every_thread_has_a_default_stream_of_its_own() -> None:
    context = start()
    gate = Gate(PER_THREAD)
    assert code("cuStreamQuery", PER_THREAD) == NOT_READY
    answers: list[int] = []

    def other() -> None:
        ok("cuCtxSetCurrent", context)
        answers.append(code("cuStreamQuery", PER_THREAD))
        answers.append(code("cuStreamQuery_ptsz", None))
        answers.append(code("cuStreamQuery", LEGACY))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert answers == [0, 0, 0]
    assert code("cuStreamQuery_ptsz", None) == NOT_READY
    ok("cuMemsetD8Async", u64(alloc(4)), 0, size(4), LEGACY)
    assert code("cuStreamQuery", LEGACY) == NOT_READY, "waits for the per-thread stream"
    gate.open()
    ok("cuCtxSynchronize")


def streams_say_what_they_are() -> None:
    start()
    stream = new("cuStreamCreateWithPriority", NON_BLOCKING, -3)
    flags, priority, context, number, status = u32(), i32(), ptr(), u64(), i32(9)
    ok("cuStreamGetFlags", stream, ref(flags))
    ok("cuStreamGetPriority", stream, ref(priority))
    ok("cuStreamGetCtx", stream, ref(context))
    current = new("cuCtxGetCurrent")
    assert (flags.value, priority.value, context.value) == (NON_BLOCKING, -3, current.value)
    other = u64()
    ok("cuStreamGetId", stream, ref(number))
    ok("cuStreamGetId", None, ref(other))
    assert number.value != other.value
    ok("cuStreamIsCapturing", stream, ref(status))
    assert status.value == 0
    green = ptr(1)
    ok("cuStreamGetGreenCtx", stream, ref(green))
    assert not green.value
    assert code("cuStreamCreate", ref(ptr()), 8) == INVALID_VALUE


def freeing_waits_for_the_work_that_uses_the_memory() -> None:
    start()
    stream = new("cuStreamCreate", NON_BLOCKING)
    p = alloc(4)
    gate = Gate(stream)
    ok("cuMemsetD32Async", u64(p), 1, size(1), stream)
    freed = threading.Event()

    def free() -> None:
        ok("cuCtxSetCurrent", context)
        ok("cuMemFree_v2", u64(p))
        freed.set()

    context = new("cuCtxGetCurrent")
    thread = threading.Thread(target=free)
    thread.start()
    assert not freed.wait(0.1)
    gate.open()
    thread.join()
    assert freed.is_set()
    put(alloc(4), b"done")


if __name__ == "__main__":
    main(globals())
