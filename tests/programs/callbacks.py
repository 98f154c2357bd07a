"""Host functions run in stream order, see earlier copies, and hold back later ones."""

import ctypes

from cu import cu, download, kernels, launch, ok, pinned, start, u32, u64

start()
functions = kernels()
n = 4096
host = pinned(n)
source, target = ok(cu.cuMemAlloc(n * 4)), ok(cu.cuMemAlloc(n * 4))
stream = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
seen = []


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def double(_):
    seen.append(int(host[0]))
    host[:] *= 2


driver = ctypes.CDLL("libcuda.so.1")
for value in (5, 6, 7):
    launch(functions["late_fill"], 1, 256, [u64(int(source)), u32(n), u32(value), u64(10_000_000)], stream)
    ok(cu.cuMemcpyDtoHAsync(host.ctypes.data, source, n * 4, stream))
    assert driver.cuLaunchHostFunc(ctypes.c_void_p(int(stream)), double, None) == 0
    ok(cu.cuMemcpyHtoDAsync(target, host.ctypes.data, n * 4, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert (download(target, n) == 2 * value).all()
assert seen == [5, 6, 7], seen
print("ok")
