"""DtoHAsync into pinned memory, then HtoDAsync from it: on one stream, and on two joined by an event."""

from cu import cu, download, kernels, launch, ok, pinned, start, u32, u64

start()
functions = kernels()
n = 1 << 20
host = pinned(n)
source, target = ok(cu.cuMemAlloc(n * 4)), ok(cu.cuMemAlloc(n * 4))
a, b = (ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(2))
for value, second in ((11, a), (22, b)):
    host[:] = 0
    late = [u64(int(source)), u32(n), u32(value), u64(50_000_000)]
    launch(functions["late_fill"], 1, 256, late, a)
    ok(cu.cuMemcpyDtoHAsync(host.ctypes.data, source, n * 4, a))
    if second is b:
        event = ok(cu.cuEventCreate(0))
        ok(cu.cuEventRecord(event, a))
        ok(cu.cuStreamWaitEvent(b, event, 0))
    ok(cu.cuMemcpyHtoDAsync(target, host.ctypes.data, n * 4, second))
    ok(cu.cuStreamSynchronize(second))
    assert (host == value).all()
    assert (download(target, n) == value).all()
print("ok")
