"""A thread loads a kernel while another one spins; the main thread sends what ends that meanwhile."""

import threading

import numpy as np
from cu import cu, download, launch, load, ok, start, u64, upload

context = start()
module = load()
spin = ok(cu.cuModuleGetFunction(module, b"spin"))
flag, out, counter = (upload(np.zeros(1, np.uint32)) for _ in range(3))
a, b = (ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(2))


def increment():
    ok(cu.cuCtxSetCurrent(context))
    launch(ok(cu.cuModuleGetFunction(module, b"increment")), 1, 1, [u64(int(counter))], b)


launch(spin, 1, 1, [u64(int(flag)), u64(int(out))], a)
loader = threading.Thread(target=increment)
loader.start()
loader.join(1)
print("waits" if loader.is_alive() else "has loaded")
ok(cu.cuMemcpyHtoDAsync(flag, np.array([42], np.uint32), 4, b))
ok(cu.cuStreamSynchronize(a))
loader.join()
ok(cu.cuStreamSynchronize(b))
assert (download(out, 1)[0], download(counter, 1)[0]) == (42, 1)
print("ok")
