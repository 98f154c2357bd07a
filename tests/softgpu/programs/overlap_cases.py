"""Programs for the overlap checker. In a `race_` nothing orders two streams that touch the same bytes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from softcuda import HEADER, HOST_FUNCTION, alloc, get, i32, launch, main, new, ok, pinned, ptr, ref, size, u32, u64
from softcuda import start as start_driver

DEFAULT, NON_BLOCKING = 0, 1
LEGACY, PER_THREAD = ptr(1), ptr(2)
NOT_READY = 600
REUSE_ALLOW_OPPORTUNISTIC, REUSE_ALLOW_INTERNAL_DEPENDENCIES = 2, 3

KERNEL = """
.visible .entry %s(.param .u64 p, .param .u64 q)
{
    .reg .b64 %%a, %%b;
    .reg .b32 %%v;
    .reg .pred %%c;
    ld.param.u64 %%a, [p];
    ld.param.u64 %%b, [q];
    mov.u32 %%v, 7;
    %s
    ret;
}
"""
AGAIN = "AGAIN: %s %%v, [%%b]; setp.eq.u32 %%c, %%v, 0; @%%c bra AGAIN; "
BODIES = {
    "store": "st.global.u32 [%a], %v;",
    "other_store": "st.global.u32 [%a], %v;",
    "store_byte": "st.global.u8 [%a], %v;",
    "load": "ld.global.u32 %v, [%a]; st.global.u32 [%b], %v;",
    "add": "red.global.add.u32 [%a], %v;",
    "gemm": "st.global.u32 [%b], %v; ld.global.u32 %v, [%b]; st.global.u32 [%a], %v;",
    "publish": "st.global.u32 [%a], %v; st.release.gpu.global.u32 [%b], %v;",
    "publish_unordered": "st.global.u32 [%a], %v; st.volatile.global.u32 [%b], %v;",
    "publish_with_fence": "st.global.u32 [%a], %v; membar.gl; st.volatile.global.u32 [%b], %v;",
    "publish_too_early": "st.release.gpu.global.u32 [%b], %v; st.global.u32 [%a], %v;",
    "consume": AGAIN % "ld.acquire.gpu.global.u32" + "st.global.u32 [%a], %v;",
    "consume_with_fence": AGAIN % "ld.volatile.global.u32" + "membar.gl; st.global.u32 [%a], %v;",
}
kernels: dict[str, Any] = {}
keep: list[Any] = []


def start() -> tuple[Any, Any]:
    """Two streams that nothing orders."""
    start_driver()
    # Before anything is freed, so that it takes no address that is to be used again.
    keep.append(pinned(4))
    text = HEADER + "".join(KERNEL % (name, body) for name, body in BODIES.items())
    handle = new("cuModuleLoadData", text.encode() + b"\0")
    for name in BODIES:
        kernels[name] = new("cuModuleGetFunction", handle, name.encode())
    return stream(), stream()


def stream(flags: int = NON_BLOCKING) -> Any:
    return new("cuStreamCreate", flags)


def run(name: str, on: Any, p: int, q: int = 0) -> None:
    assert launch(kernels[name], [u64(p), u64(q)], stream=on) == 0


def event() -> Any:
    return new("cuEventCreate", 2)


def after(first: Any, second: Any) -> None:
    """Makes later work on `second` wait for the work on `first` so far."""
    mark = event()
    ok("cuEventRecord", mark, first)
    ok("cuStreamWaitEvent", second, mark, 0)


def watch_host_memory(on: Any, source: int) -> None:
    """Waits for a stream by watching host memory, so that no call tells of it."""
    address, bytes_ = keep[0]
    ok("cuMemcpyDtoHAsync_v2", ptr(address), u64(source), size(4), on)
    while bytes_.raw == bytes(4):
        pass


def nonzero() -> int:
    p = alloc(4)
    ok("cuMemsetD32_v2", u64(p), 1, size(1))
    ok("cuCtxSynchronize")
    return p


def race_of_two_kernels() -> None:
    s, t = start()
    p = alloc(4)
    run("store", s, p)
    run("other_store", t, p)


def race_of_a_load_and_a_store() -> None:
    s, t = start()
    p, q = alloc(4), alloc(4)
    run("load", s, p, q)
    run("store", t, p)


def race_of_a_copy_and_a_kernel() -> None:
    s, t = start()
    p, q = alloc(4), alloc(4)
    ok("cuMemcpyDtoDAsync_v2", u64(p), u64(q), size(4), s)
    run("store", t, p)


def race_of_a_copys_source_and_a_kernel() -> None:
    s, t = start()
    p, q = alloc(4), alloc(4)
    ok("cuMemcpyDtoDAsync_v2", u64(q), u64(p), size(4), s)
    run("store", t, p)


def race_of_a_fill_and_a_kernel() -> None:
    s, t = start()
    p, q = alloc(64), alloc(4)
    ok("cuMemsetD32Async", u64(p), 1, size(16), s)
    run("load", t, p + 60, q)


def race_with_a_workspace_that_two_streams_share() -> None:
    """The outputs are separate; the workspace of one handle is shared."""
    s, t = start()
    c, d, workspace = alloc(4), alloc(4), alloc(4)
    run("gemm", s, c, workspace)
    run("gemm", t, d, workspace)


def race_behind_an_event_recorded_too_early() -> None:
    s, t = start()
    p = alloc(4)
    mark = event()
    ok("cuEventRecord", mark, s)
    run("store", s, p)
    ok("cuStreamWaitEvent", t, mark, 0)
    run("other_store", t, p)


def race_behind_an_event_recorded_again() -> None:
    s, t = start()
    p, other = alloc(4), stream()
    mark = event()
    run("store", s, p)
    ok("cuEventRecord", mark, s)
    ok("cuEventRecord", mark, other)
    ok("cuStreamWaitEvent", t, mark, 0)
    run("other_store", t, p)


def race_with_the_legacy_stream() -> None:
    s, _ = start()
    p = alloc(4)
    run("store", LEGACY, p)
    run("other_store", s, p)


def race_of_two_blocking_streams() -> None:
    start()
    p = alloc(4)
    run("store", stream(DEFAULT), p)
    run("other_store", stream(DEFAULT), p)


def race_of_a_wait_for_another_stream() -> None:
    s, t = start()
    p = alloc(4)
    run("store", s, p)
    ok("cuStreamSynchronize", t)
    run("other_store", t, p)


class Node(ctypes.Structure):
    _fields_ = [
        ("func", ptr), ("grid", u32 * 3), ("block", u32 * 3), ("shared", u32), ("params", ptr), ("extra", ptr),
    ]  # fmt: skip


def params_of(name: str, p: int) -> Node:
    arguments = [u64(p), u64(0)]
    addresses = (ptr * 2)(*[ctypes.addressof(a) for a in arguments])
    keep.append((arguments, addresses))
    return Node(kernels[name], (1, 1, 1), (1, 1, 1), 0, ctypes.addressof(addresses), None)


def node(graph: Any, name: str, p: int, *before: Any) -> Any:
    dependencies = (ptr * max(1, len(before)))(*before)
    return new("cuGraphAddKernelNode", graph, dependencies, size(len(before)), ref(params_of(name, p)))


def executable(graph: Any) -> Any:
    return new("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))


def race_of_two_branches_of_a_graph() -> None:
    s, _ = start()
    p, graph = alloc(4), new("cuGraphCreate", 0)
    node(graph, "store", p)
    node(graph, "other_store", p)
    ok("cuGraphLaunch", executable(graph), s)


def race_behind_an_event_that_a_graph_records_too_early() -> None:
    s, t = start()
    p, graph, mark = alloc(4), new("cuGraphCreate", 0), event()
    recorded = new("cuGraphAddEventRecordNode", graph, None, size(0), mark)
    node(graph, "store", p, recorded)
    ok("cuGraphLaunch", executable(graph), s)
    ok("cuStreamWaitEvent", t, mark, 0)
    run("other_store", t, p)


def race_of_a_graph_and_a_stream() -> None:
    s, t = start()
    p, graph = alloc(4), new("cuGraphCreate", 0)
    node(graph, "store", p)
    ok("cuGraphLaunch", executable(graph), s)
    run("other_store", t, p)


def race_of_a_free_and_a_kernel() -> None:
    s, t = start()
    p = new("cuMemAllocAsync", size(4), s, kind=u64).value
    q = nonzero()
    run("store", s, p)
    after(s, t)
    run("load", t, p, q)
    watch_host_memory(t, q)
    ok("cuMemFreeAsync", u64(p), s)


def pool_without_order() -> Any:
    """The current pool, which leaves the order of one stream's free and another's allocation to the program."""
    pool = new("cuDeviceGetDefaultMemPool", 0)
    for attribute in (REUSE_ALLOW_OPPORTUNISTIC, REUSE_ALLOW_INTERNAL_DEPENDENCIES):
        ok("cuMemPoolSetAttribute", pool, attribute, ref(i32(0)))
    return pool


def freed_and_handed_out(s: Any, t: Any) -> int:
    """Memory that `s` wrote and freed, for `t`: the free has run, but no call has reported it."""
    p = new("cuMemAllocAsync", size(4), s, kind=u64).value
    q = nonzero()
    run("store", s, p)
    ok("cuMemFreeAsync", u64(p), s)
    watch_host_memory(s, q)
    assert new("cuMemAllocAsync", size(4), t, kind=u64).value == p
    return int(p)


def race_of_a_free_and_an_allocation() -> None:
    s, t = start()
    pool_without_order()
    freed_and_handed_out(s, t)


def race_of_an_atomic_and_a_store() -> None:
    s, t = start()
    p = alloc(4)
    run("add", s, p)
    run("store", t, p)


def race_with_a_flag_that_releases_nothing() -> None:
    s, t = start()
    p, flag = alloc(4), alloc(4)
    run("publish_unordered", s, p, flag)
    run("consume", t, p, flag)


def race_with_what_follows_a_release() -> None:
    s, t = start()
    p, flag = alloc(4), alloc(4)
    run("publish_too_early", s, p, flag)
    run("consume", t, p, flag)


class Location(ctypes.Structure):
    _fields_ = [("type", i32), ("id", i32)]


class Properties(ctypes.Structure):
    _fields_ = [
        ("type", i32), ("handles", i32), ("location", Location), ("win32", ptr), ("flags", ctypes.c_char * 8),
    ]  # fmt: skip


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", i32)]


def race_at_two_addresses_of_the_same_memory() -> None:
    s, t = start()
    length = 2 << 20
    memory = new("cuMemCreate", size(length), ref(Properties(1, 0, Location(1, 0))), 0, kind=u64)
    bases = [new("cuMemAddressReserve", size(length), size(0), u64(0), 0, kind=u64).value for _ in range(2)]
    for base in bases:
        ok("cuMemMap", u64(base), size(length), size(0), memory, 0)
        ok("cuMemSetAccess", u64(base), size(length), ref(Access(Location(1, 0), 3)), size(1))
    run("store", s, bases[0] + 64)
    run("other_store", t, bases[1] + 64)


def one_stream() -> None:
    s, _ = start()
    p = alloc(4)
    run("store", s, p)
    run("other_store", s, p)


def an_event() -> None:
    s, t = start()
    p = alloc(4)
    run("store", s, p)
    after(s, t)
    run("other_store", t, p)


def an_event_that_was_reached_before_the_wait() -> None:
    s, t = start()
    p, q, mark = alloc(4), nonzero(), event()
    run("store", s, p)
    ok("cuEventRecord", mark, s)
    watch_host_memory(s, q)
    ok("cuStreamWaitEvent", t, mark, 0)
    run("other_store", t, p)


def events_over_a_third_stream() -> None:
    s, t = start()
    p, between = alloc(4), stream()
    run("store", s, p)
    after(s, between)
    after(between, t)
    run("other_store", t, p)


def by_host(wait: Callable[[Any], None], flags: int = NON_BLOCKING) -> None:
    """The host waits for one stream before it submits work to another."""
    _, t = start()
    s = stream(flags)
    p = alloc(4)
    run("store", s, p)
    wait(s)
    run("other_store", t, p)


def the_host_waits_for_a_stream() -> None:
    by_host(lambda s: ok("cuStreamSynchronize", s))


def the_host_waits_for_the_context() -> None:
    by_host(lambda s: ok("cuCtxSynchronize"))


def the_host_waits_for_an_event() -> None:
    def wait(s: Any) -> None:
        mark = event()
        ok("cuEventRecord", mark, s)
        ok("cuEventSynchronize", mark)

    by_host(wait)


def until_done(query: Callable[[], int]) -> None:
    while (result := query()) != 0:
        assert result == NOT_READY


def the_host_is_told_that_a_stream_is_done() -> None:
    lib = ctypes.CDLL("libcuda.so.1")
    by_host(lambda s: until_done(lambda: int(lib.cuStreamQuery(s))))


def the_host_is_told_that_an_event_is_reached() -> None:
    lib = ctypes.CDLL("libcuda.so.1")

    def wait(s: Any) -> None:
        mark = event()
        ok("cuEventRecord", mark, s)
        until_done(lambda: int(lib.cuEventQuery(mark)))

    by_host(wait)


def the_host_copies_and_waits() -> None:
    """A copy in the legacy stream, which waits for streams that are not non-blocking."""
    q_of: list[int] = []

    def wait(s: Any) -> None:
        q_of.append(alloc(4))
        get(q_of[0], 4)

    by_host(wait, DEFAULT)


def the_host_frees_other_memory() -> None:
    by_host(lambda s: ok("cuMemFree_v2", u64(alloc(4))))


def the_legacy_stream_is_between() -> None:
    _, _ = start()
    p, q = alloc(4), alloc(4)
    run("store", stream(DEFAULT), p)
    run("store", LEGACY, q)
    run("other_store", stream(DEFAULT), p)


def the_legacy_stream_is_first() -> None:
    start()
    p = alloc(4)
    run("store", LEGACY, p)
    run("other_store", PER_THREAD, p)


def a_destroyed_stream_is_before_the_legacy_one() -> None:
    start()
    p, s = alloc(4), stream(DEFAULT)
    run("store", s, p)
    ok("cuStreamDestroy_v2", s)
    run("other_store", LEGACY, p)


def an_edge_of_a_graph() -> None:
    s, _ = start()
    p, graph = alloc(4), new("cuGraphCreate", 0)
    first = node(graph, "store", p)
    node(graph, "other_store", p, first)
    ok("cuGraphLaunch", executable(graph), s)


def a_fork_and_a_join_in_a_graph() -> None:
    s, _ = start()
    p, q, graph = alloc(4), alloc(4), new("cuGraphCreate", 0)
    first = node(graph, "store", p)
    left = node(graph, "store", q, first)
    right = node(graph, "other_store", p, first)
    node(graph, "other_store", q, right, left)
    ok("cuGraphLaunch", executable(graph), s)


def a_graph_between_work_of_its_stream() -> None:
    s, t = start()
    p, q, graph = alloc(4), alloc(4), new("cuGraphCreate", 0)
    node(graph, "store", p)
    node(graph, "store", q)
    run("store", s, p)
    ok("cuGraphLaunch", executable(graph), s)
    after(s, t)
    run("other_store", t, p)
    run("other_store", t, q)


def two_launches_with_kernels_that_change_places() -> None:
    """In the second launch each branch writes the memory of the other one in the first."""
    s, t = start()
    p, q, graph = alloc(4), alloc(4), new("cuGraphCreate", 0)
    first, second = node(graph, "store", p), node(graph, "other_store", q)
    made = executable(graph)
    ok("cuGraphLaunch", made, s)
    for of, name, address in ((first, "store", q), (second, "other_store", p)):
        ok("cuGraphExecKernelNodeSetParams", made, of, ref(params_of(name, address)))
    ok("cuGraphLaunch", made, t)


def an_event_that_a_graph_records() -> None:
    s, t = start()
    p, graph, mark = alloc(4), new("cuGraphCreate", 0), event()
    first, waited = node(graph, "store", p), threading.Event()
    new("cuGraphAddEventRecordNode", graph, ref(first), size(1), mark)
    # So that the order of the calls counts, not the moment when the record is reached.
    function_ = HOST_FUNCTION(lambda _: bool(waited.wait(60)))
    keep.append(function_)
    ok("cuLaunchHostFunc", s, function_, None)
    ok("cuGraphLaunch", executable(graph), s)
    ok("cuStreamWaitEvent", t, mark, 0)
    waited.set()
    run("other_store", t, p)


def an_event_that_a_graph_waits_for() -> None:
    s, t = start()
    p, graph, mark = alloc(4), new("cuGraphCreate", 0), event()
    wait = new("cuGraphAddEventWaitNode", graph, None, size(0), mark)
    node(graph, "other_store", p, wait)
    made = executable(graph)
    run("store", s, p)
    ok("cuEventRecord", mark, s)
    ok("cuGraphLaunch", made, t)


def two_launches_of_one_executable() -> None:
    s, t = start()
    p, graph = alloc(4), new("cuGraphCreate", 0)
    node(graph, "store", p)
    made = executable(graph)
    ok("cuGraphLaunch", made, s)
    ok("cuGraphLaunch", made, t)


def a_host_function() -> None:
    """Its run orders later work after the stream's earlier work."""
    s, t = start()
    p, ran = alloc(4), []
    function_ = HOST_FUNCTION(lambda _: ran.append(True))
    keep.append(function_)
    run("store", s, p)
    ok("cuLaunchHostFunc", s, function_, None)
    while not ran:
        pass
    run("other_store", t, p)


def what_the_host_learned_during_a_host_function() -> None:
    """Work behind the function was submitted before the host waited for the other stream."""
    s, t = start()
    p, learned = alloc(4), threading.Event()
    function_ = HOST_FUNCTION(lambda _: bool(learned.wait(60)))
    keep.append(function_)
    run("store", t, p)
    ok("cuLaunchHostFunc", s, function_, None)
    run("other_store", s, p)
    ok("cuStreamSynchronize", t)
    learned.set()


def a_word_that_a_stream_writes_and_a_kernel_acquires() -> None:
    s, t = start()
    p, flag = alloc(4), alloc(4)
    ok("cuMemsetD32_v2", u64(flag), 0, size(1))
    ok("cuCtxSynchronize")
    run("store", s, p)
    ok("cuStreamWriteValue32_v2", s, u64(flag), 5, 0)
    run("consume", t, p, flag)


def a_word_that_a_stream_writes_and_another_waits_for() -> None:
    s, t = start()
    p, word = alloc(4), nonzero()
    run("store", s, p)
    ok("cuStreamWriteValue32_v2", s, u64(word), 5, 0)
    ok("cuStreamWaitValue32_v2", t, u64(word), 5, 1)
    run("other_store", t, p)


def race_of_a_kernel_and_memory_handed_out_again() -> None:
    """The pool orders the allocation after the free, and not after a stream that the free does not come after."""
    s, t = start()
    r = stream()
    p = freed_and_handed_out(s, t)
    run("store", r, p)
    run("other_store", t, p)


def pooled_memory_that_the_pool_orders() -> None:
    s, t = start()
    run("other_store", t, freed_and_handed_out(s, t))


def pooled_memory_allocated_after_its_free() -> None:
    s, t = start()
    pool_without_order()
    p = new("cuMemAllocAsync", size(4), s, kind=u64).value
    q = nonzero()
    run("store", s, p)
    ok("cuMemFreeAsync", u64(p), s)
    after(s, t)
    watch_host_memory(s, q)
    assert new("cuMemAllocAsync", size(4), t, kind=u64).value == p
    run("other_store", t, p)


def pieces_of_pooled_memory_that_the_pool_orders() -> None:
    """Half of what one stream freed goes to a second one, the other half to a third one."""
    s, t = start()
    r = stream()
    whole, half = 1024, 512
    p = new("cuMemAllocAsync", size(whole), s, kind=u64).value
    q = nonzero()
    for at in (p, p + half):
        run("store", s, at)
    ok("cuMemFreeAsync", u64(p), s)
    watch_host_memory(s, q)
    for other, at in ((t, p), (r, p + half)):
        assert new("cuMemAllocAsync", size(half), other, kind=u64).value == at
        run("other_store", other, at)


def memory_allocated_after_its_free() -> None:
    s, t = start()
    p = alloc(4)
    run("store", s, p)
    ok("cuMemFree_v2", u64(p))
    q = alloc(4)
    run("other_store", t, q)


def atomics() -> None:
    s, t = start()
    p = alloc(4)
    run("add", s, p)
    run("add", t, p)


def a_release_that_another_kernel_acquires() -> None:
    s, t = start()
    p, flag = alloc(4), alloc(4)
    run("publish", s, p, flag)
    run("consume", t, p, flag)


def fences_around_a_flag() -> None:
    s, t = start()
    p, flag = alloc(4), alloc(4)
    run("publish_with_fence", s, p, flag)
    run("consume_with_fence", t, p, flag)


def bytes_side_by_side() -> None:
    s, t = start()
    p = alloc(4)
    run("store_byte", s, p)
    run("store_byte", t, p + 1)


def two_readers() -> None:
    s, t = start()
    p, q, r = alloc(4), alloc(4), alloc(4)
    run("load", s, p, q)
    run("load", t, p, r)


def memory_that_the_host_may_poll() -> None:
    s, t = start()
    address, _ = pinned(4)
    run("store", s, address)
    run("other_store", t, address)


def memory_of_other_processes() -> None:
    s, t = start()
    p, named = alloc(4096), ctypes.create_string_buffer(64)
    ok("cuIpcGetMemHandle", named, u64(p))
    run("store", s, p)
    run("other_store", t, p)


if __name__ == "__main__":
    main({name: value for name, value in globals().items() if callable(value)})
    ok("cuCtxSynchronize")
