"""State that threads share, state of each thread, and calls that a forked child may make."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

from documented.driver import PER_THREAD, PTX, Broken, Library, Machine, in_thread, out, word
from documented.row import Table, always, first_of
from documented.rows.errors import _device

TABLE = Table("threads")
row = TABLE.row
CONTEXTS, STREAMS, MEMORY = "Context Management", "Stream Management", "Memory Management"
CAPTURES, FORKS = "Stream capture", "CUDA and fork"
DEFAULT, NVML = "Stream synchronization behavior", "NVML: thread safety"


def _without_context(function: str, *arguments: object) -> None:
    @row(function, CONTEXTS, "In a thread without a current context it is an invalid context.",
         {function: always(0)})  # fmt: skip
    def check(m: Machine) -> None:
        code = in_thread(lambda: getattr(m.cuda, function)(*arguments))
        assert code == 201, code


_without_context("cuMemAlloc", out(word()), 64)
_without_context("cuMemGetInfo", out(word()), out(word()))
_without_context("cuMemHostAlloc", out(word()), 64, 0)
_without_context("cuStreamCreate", out(word()), 0)
_without_context("cuEventCreate", out(word()), 0)
_without_context("cuModuleLoadData", out(word()), PTX)
_without_context("cuCtxSynchronize")
_without_context("cuCtxGetDevice", out(word()))
_without_context("cuCtxPopCurrent", out(word()))
_without_context("cuCtxGetLimit", out(word()), 0)
_without_context("cuMemAllocManaged", out(word()), 64, 1)
_without_context("cuCtxGetStreamPriorityRange", out(word()), out(word()))


def _current(m: Machine) -> int:
    place = word(77)
    m.ok("cuCtxGetCurrent", out(place))
    return place.value


@row("cuCtxGetCurrent", CONTEXTS, "A new thread has no current context.",
     {"cuCtxGetCurrent": first_of("cuCtxGetCurrent", 99)})  # fmt: skip
def _none_at_first(m: Machine) -> None:
    assert in_thread(lambda: _current(m)) == 0


@row("cuCtxSetCurrent", CONTEXTS, "A context can be current to several threads.", {"cuCtxSetCurrent": always(201)})
def _in_several(m: Machine) -> None:
    def work() -> int:
        m.ok("cuCtxSetCurrent", m.context)
        m.memory()
        return _current(m)

    assert [in_thread(work) for _ in range(3)] == [m.context] * 3 == [_current(m)] * 3


def _of_all_threads() -> dict[str, Broken]:
    """A driver whose current context belongs to the process."""
    last: list[int] = []

    def take(real: Library, context: int | None) -> int:
        last[:] = [context or 0]
        return real.cuCtxSetCurrent(context)

    def tell(real: Library, place: object) -> int:
        code = real.cuCtxGetCurrent(place)
        if last:
            place._obj.value = last[0]  # type: ignore[attr-defined]
        return code

    return {"cuCtxSetCurrent": take, "cuCtxGetCurrent": tell}


@row("cuCtxSetCurrent", CONTEXTS, "What is current in one thread is not so in another.", _of_all_threads())
def _of_its_own(m: Machine) -> None:
    in_thread(lambda: m.ok("cuCtxSetCurrent", None))
    assert _current(m) == m.context


@row("cuCtxPushCurrent", CONTEXTS, "Each thread has a stack of its own.", {"cuCtxPushCurrent": always(0)})
def _stacks(m: Machine) -> None:
    def work() -> tuple[int, int]:
        m.ok("cuCtxPushCurrent", m.context)
        inside = _current(m)
        m.cuda.cuCtxPopCurrent(out(word()))
        return inside, _current(m)

    assert (in_thread(work), _current(m)) == ((m.context, 0), m.context)


def _with_context(m: Machine, function: Callable[[], int]) -> int:
    def work() -> int:
        m.ok("cuCtxSetCurrent", m.context)
        return function()

    return int(in_thread(work))


@row("cuMemAlloc", MEMORY, "Memory of one thread is used and freed in another.", {"cuMemFree": always(1)})
def _memory_of_another(m: Machine) -> None:
    address = _with_context(m, lambda: m.memory(4096, 3))
    assert m.look(address) == 3
    m.ok("cuMemFree", address)


@row("cuStreamSynchronize", STREAMS, "A stream of one thread is waited for in another.",
     {"cuStreamSynchronize": always(0)})  # fmt: skip
def _stream_of_another(m: Machine) -> None:
    stream = m.stream()
    assert m.waits(stream, lambda: _with_context(m, lambda: m.cuda.cuStreamSynchronize(stream)))


@row("cuEventSynchronize", "Event Management", "An event of one thread is waited for in another.",
     {"cuEventSynchronize": always(0)})  # fmt: skip
def _event_of_another(m: Machine) -> None:
    stream, event = m.stream(), m.event()

    def wait() -> int:
        m.ok("cuEventRecord", event, stream)
        return _with_context(m, lambda: m.cuda.cuEventSynchronize(event))

    assert m.waits(stream, wait)


@row("cuModuleLoadData", "Module Management", "A module of one thread is launched in another.",
     {"cuLaunchKernel": always(400)})  # fmt: skip
def _module_of_another(m: Machine) -> None:
    function, address = _with_context(m, m.function), m.memory()
    assert m.launch(function, address, 0) == 0
    m.ok("cuCtxSynchronize")
    assert m.look(address) == 1


@row("cuDevicePrimaryCtxRetain", "Primary Context Management", "All threads get one primary context.",
     {"cuDevicePrimaryCtxRetain": first_of("cuDevicePrimaryCtxRetain", 99)})  # fmt: skip
def _one_primary(m: Machine) -> None:
    assert in_thread(lambda: m.made("cuDevicePrimaryCtxRetain", 0)) == m.context
    m.ok("cuDevicePrimaryCtxRelease", 0)


@row("cuMemAlloc", MEMORY, "Threads may call at the same time: eight allocate, fill, read, and free.",
     {"cuMemAlloc": first_of("cuMemAlloc", 0)})  # fmt: skip
def _eight_threads(m: Machine) -> None:
    found: dict[int, int] = {}

    def work(number: int) -> None:
        m.ok("cuCtxSetCurrent", m.context)
        addresses = [m.memory(4096, number) for _ in range(4)]
        found[number] = max(abs(m.look(address) - number) for address in addresses)
        for address in addresses:
            m.ok("cuMemFree", address)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(8), 0), found


@row("CU_STREAM_PER_THREAD", DEFAULT, "Each thread has a default stream of its own.", {
    "cuStreamSynchronize": lambda real, stream: real.cuCtxSynchronize()
})  # fmt: skip
def _per_thread(m: Machine) -> None:
    assert m.returns_at_once(PER_THREAD, lambda: _with_context(m, lambda: m.cuda.cuStreamSynchronize(PER_THREAD)))


@row("cuLaunchHostFunc", "Execution Control", "A host function runs in a thread of the driver.",
     {"cuLaunchHostFunc": lambda real, stream, call, data: call(data) or 0})  # fmt: skip
def _driver_thread(m: Machine) -> None:
    stream, seen = m.stream(), []
    m.ok("cuLaunchHostFunc", stream, m.call(lambda: seen.append(threading.get_native_id())), None)
    m.ok("cuStreamSynchronize", stream)
    assert seen != [threading.get_native_id()]


def _captured(m: Machine, mode: int, call: Callable[[], int]) -> tuple[int, int]:
    """The code of a call during a capture, and that of the capture's end."""
    stream = m.stream()
    m.ok("cuStreamBeginCapture", stream, mode)
    return call(), m.cuda.cuStreamEndCapture(stream, out(word()))


@row("cuStreamBeginCapture", CAPTURES, "Global: no other thread may make calls that could break the capture.",
     {"cuStreamBeginCapture": lambda real, stream, mode: real.cuStreamBeginCapture(stream, 2)})  # fmt: skip
def _global(m: Machine) -> None:
    code, _ = _captured(m, 0, lambda: _with_context(m, lambda: m.cuda.cuMemAlloc(out(word()), 64)))
    assert code == 900, code


@row("cuStreamBeginCapture", CAPTURES, "Global: nor may the thread itself.",
     {"cuStreamBeginCapture": lambda real, stream, mode: real.cuStreamBeginCapture(stream, 2)})  # fmt: skip
def _global_itself(m: Machine) -> None:
    code, _ = _captured(m, 0, lambda: m.cuda.cuMemAlloc(out(word()), 64))
    assert code == 900, code


@row("cuStreamBeginCapture", CAPTURES, "Thread-local: another thread may.",
     {"cuStreamBeginCapture": lambda real, stream, mode: real.cuStreamBeginCapture(stream, 0)})  # fmt: skip
def _local(m: Machine) -> None:
    codes = _captured(m, 1, lambda: _with_context(m, lambda: m.cuda.cuMemAlloc(out(word()), 64)))
    assert codes == (0, 0), codes


@row("cuStreamBeginCapture", CAPTURES, "Relaxed: the thread itself may.",
     {"cuStreamBeginCapture": lambda real, stream, mode: real.cuStreamBeginCapture(stream, 0)})  # fmt: skip
def _relaxed(m: Machine) -> None:
    codes = _captured(m, 2, lambda: m.cuda.cuMemAlloc(out(word()), 64))
    assert codes == (0, 0), codes


@row("cuStreamEndCapture", CAPTURES, "A capture that is not relaxed ends in the thread that began it.",
     {"cuStreamEndCapture": always(0)})  # fmt: skip
def _ended_elsewhere(m: Machine) -> None:
    stream = m.stream()
    m.ok("cuStreamBeginCapture", stream, 1)
    code = _with_context(m, lambda: m.cuda.cuStreamEndCapture(stream, out(word())))
    m.cuda.cuStreamEndCapture(stream, out(word()))
    assert code == 908, code


@row("cuThreadExchangeStreamCaptureMode", CAPTURES, "Each thread has a mode; it begins as global.",
     {"cuThreadExchangeStreamCaptureMode": always(0)})  # fmt: skip
def _mode(m: Machine) -> None:
    def exchanged(mode: int) -> int:
        place = ctypes.c_int32(mode)
        m.ok("cuThreadExchangeStreamCaptureMode", out(place))
        return place.value

    before = exchanged(2)
    other = in_thread(lambda: exchanged(1))
    assert (before, other, exchanged(0)) == (0, 0, 2)


def _in_child(function: Callable[[], int]) -> int:
    """The code of a call in a forked child that then ends."""
    child = os.fork()
    if child == 0:
        code = 250
        try:
            code = function() & 255
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _not_in_a_child(function: str, *arguments: object) -> None:
    @row(function, FORKS, "In a child that was forked after cuInit, CUDA is not initialized.",
         {function: always(0)})  # fmt: skip
    def check(m: Machine) -> None:
        code = _in_child(lambda: getattr(m.cuda, function)(*arguments))
        assert code == 3, code


_not_in_a_child("cuInit", 0)
_not_in_a_child("cuDeviceGetCount", out(word()))
_not_in_a_child("cuDeviceGet", out(word()), 0)
_not_in_a_child("cuMemAlloc", out(word()), 64)
_not_in_a_child("cuCtxSynchronize")


@row("cuDriverGetVersion", "Version Management", "It needs no cuInit, so it answers in a forked child.",
     {"cuDriverGetVersion": always(3)})  # fmt: skip
def _version_in_a_child(m: Machine) -> None:
    assert _in_child(lambda: m.cuda.cuDriverGetVersion(out(word()))) == 0


@row("fork", FORKS, "A child that ends leaves its parent's context alone.", {"cuMemsetD32": always(1)})
def _parent_goes_on(m: Machine) -> None:
    address = m.memory(4096, 2)
    assert _in_child(lambda: 0) == 0
    assert m.look(address) == 2
    m.memory(4096, 1)


@row("nvmlDeviceGetName", NVML, "Threads may call at the same time.", {"nvmlDeviceGetName": always(999)})
def _nvml_threads(m: Machine) -> None:
    device = _device(m)
    codes: list[int] = []

    def work() -> None:
        codes.extend(m.nvml.nvmlDeviceGetName(device, ctypes.create_string_buffer(96), 96) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 80


@row("nvmlInit_v2", NVML, "What one thread initialised, another may use.", {"nvmlDeviceGetCount_v2": always(1)})
def _nvml_of_another(m: Machine) -> None:
    assert in_thread(lambda: m.nvml.nvmlDeviceGetCount_v2(out(word()))) == 0
