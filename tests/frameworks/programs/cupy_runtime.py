"""CuPy's streams, events, memory pools and device queries."""

from __future__ import annotations

import cases
import cupy as cp
import numpy as np

MIB = 1 << 20
rng = np.random.default_rng(7)


def streams_keep_order():
    a = rng.random(20_000)
    first, second = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    ready = cp.cuda.Event(disable_timing=True)
    with first:
        x = cp.asarray(a)
        for _ in range(20):
            x = x * 1.5 + 1
        ready.record(first)
    second.wait_event(ready)
    with second:
        y = x - 1
    second.synchronize()
    want = a
    for _ in range(20):
        want = want * 1.5 + 1
    np.testing.assert_allclose(y.get(), want - 1, rtol=1e-12)
    assert first.done and second.done and ready.done
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null
    with cp.cuda.Stream.ptds:
        z = cp.arange(100) * 2
        cp.cuda.Stream.ptds.synchronize()
    assert np.array_equal(z.get(), np.arange(100) * 2)
    return [y, z]


def host_functions_run_in_order():
    seen = []
    stream = cp.cuda.Stream()
    with stream:
        x = cp.arange(1000)
        stream.launch_host_func(seen.append, "first")
        x += 1
        stream.launch_host_func(seen.append, "second")
    stream.synchronize()
    assert seen == ["first", "second"]
    return [x]


def events_measure_time():
    begin, middle, end = (cp.cuda.Event() for _ in range(3))
    begin.record()
    x = cp.ones((500, 500))
    for _ in range(5):
        x = x * 1.0001
    middle.record()
    for _ in range(20):
        x = x * 1.0001
    end.record()
    end.synchronize()
    first = cp.cuda.get_elapsed_time(begin, middle)
    whole = cp.cuda.get_elapsed_time(begin, end)
    assert 0 < first < whole < 60_000
    return [x]


def pinned_memory_and_asynchronous_copies():
    memory = cp.cuda.alloc_pinned_memory(8 * 4096)
    host = np.frombuffer(memory, np.float64, 4096)
    host[:] = rng.random(4096)
    stream = cp.cuda.Stream(non_blocking=True)
    device = cp.empty(4096)
    device.set(host, stream)
    with stream:
        device *= 3
    back = cp.cuda.alloc_pinned_memory(8 * 4096)
    out = np.frombuffer(back, np.float64, 4096)
    device.get(stream, out=out, blocking=False)
    stream.synchronize()
    assert np.array_equal(out, host * 3)
    from cupyx import empty_pinned

    pinned = empty_pinned((16, 16), np.int32)
    pinned[...] = 5
    return [device, cp.asarray(pinned) + 1]


def memory_pool_counts_and_limits():
    pool = cp.get_default_memory_pool()
    pool.free_all_blocks()
    used = pool.used_bytes()
    a = cp.empty(3 * MIB, np.uint8)
    assert pool.used_bytes() - used == 3 * MIB and pool.total_bytes() >= pool.used_bytes()
    del a
    assert pool.used_bytes() == used and pool.free_bytes() >= 3 * MIB
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + 8 * MIB)
    try:
        cp.empty(9 * MIB, np.uint8)
    except cp.cuda.memory.OutOfMemoryError as error:
        assert "limit" in str(error)
    else:
        raise AssertionError("beyond the limit")
    finally:
        pool.set_limit(size=0)
    asynchronous = cp.cuda.MemoryAsyncPool()
    with cp.cuda.using_allocator(asynchronous.malloc):
        b = cp.arange(5000) * 3
        assert np.array_equal(b.get(), np.arange(5000) * 3)
    return [b]


def memory_ends_at_the_share():
    cp.get_default_memory_pool().free_all_blocks()
    free, total = cp.cuda.runtime.memGetInfo()
    assert total == 2 << 30 and 0 < free <= total, (free, total)
    held = cp.empty(free // 2, np.uint8)
    assert abs(cp.cuda.runtime.memGetInfo()[0] - free // 2) < 4 * MIB
    try:
        cp.empty(free, np.uint8)
    except cp.cuda.memory.OutOfMemoryError as error:
        assert "Out of memory" in str(error)
    else:
        raise AssertionError("more than the share")
    del held
    cp.get_default_memory_pool().free_all_blocks()
    assert cp.cuda.runtime.memGetInfo()[0] >= free - 4 * MIB
    return [np.int64(total)]


def device_properties():
    assert cp.cuda.runtime.getDeviceCount() == 1
    properties = cp.cuda.runtime.getDeviceProperties(0)
    assert properties["totalGlobalMem"] == 2 << 30
    assert properties["warpSize"] == 32 and properties["maxThreadsPerBlock"] == 1024
    assert properties["managedMemory"] and not properties["concurrentManagedAccess"]
    device = cp.cuda.Device(0)
    assert device.compute_capability == f"{properties['major']}{properties['minor']}"
    assert device.attributes["WarpSize"] == 32 and device.pci_bus_id
    assert cp.cuda.runtime.runtimeGetVersion() >= 12000 and cp.cuda.runtime.driverGetVersion() >= 12000
    return [np.int32(properties["multiProcessorCount"])]


def a_captured_graph():
    """Launched again, with what its input holds by then."""
    scale = cp.ElementwiseKernel("float32 x, float32 f", "float32 y", "y = x * f + 1", "scale")
    stream = cp.cuda.Stream(non_blocking=True)
    kept = []
    with stream:
        source, target = cp.zeros(1000, cp.float32), cp.zeros(1000, cp.float32)
        scale(source, np.float32(2), target)
        stream.begin_capture()
        scale(source, np.float32(2), target)
        scale(target, np.float32(3), target)
        assert stream.is_capturing()
        graph = stream.end_capture()
        assert not stream.is_capturing()
        graph.upload(stream)
        for start in (0, 5):
            numbers = np.arange(start, start + 1000, dtype=np.float32)
            source.set(numbers)
            graph.launch(stream)
            kept.append(target.get())
            assert (kept[-1] == (numbers * 2 + 1) * 3 + 1).all()
    return kept


def managed_memory():
    """All arrays from managed memory, as programs with large data choose it."""
    pool = cp.cuda.MemoryPool(cp.cuda.malloc_managed)
    previous = cp.cuda.get_allocator()
    cp.cuda.set_allocator(pool.malloc)
    try:
        numbers = cp.arange(3000, dtype=cp.float32)
        numbers += 1
        doubled = numbers * 2
        cp.cuda.runtime.deviceSynchronize()
        attributes = cp.cuda.runtime.pointerGetAttributes(doubled.data.ptr)
        assert attributes.type == 3  # cudaMemoryTypeManaged
        total = float(doubled.sum())
        return [doubled.get(), np.float32(total)]
    finally:
        cp.cuda.set_allocator(previous)


if __name__ == "__main__":
    cases.main(globals())
