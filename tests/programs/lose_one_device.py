"""Two devices, and a chain from the first to the second that cannot end. After `ready` the first is taken away: only
it answers an error from then on; the second fails once for what it waited for, and continues with right results."""

import numpy as np
from cu import code_of, cu, download, kernels, launch, ok, u32, u64, upload

COUNT = 100_000
NON_BLOCKING = cu.CUstream_flags.CU_STREAM_NON_BLOCKING

ok(cu.cuInit(0))
contexts = [ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(i)))) for i in range(2)]
ok(cu.cuCtxSetCurrent(contexts[0]))
lost, event, source = ok(cu.cuStreamCreate(NON_BLOCKING)), ok(cu.cuEventCreate(0)), ok(cu.cuMemAlloc(COUNT * 4))
flag, out = (upload(np.zeros(1, np.uint32)) for _ in range(2))
launch(kernels()["spin"], 1, 1, [u64(int(flag)), u64(int(out))], lost)
ok(cu.cuEventRecord(event, lost))

ok(cu.cuCtxSetCurrent(contexts[1]))
functions, stream = kernels(), ok(cu.cuStreamCreate(NON_BLOCKING))
values, copied = upload(np.arange(COUNT, dtype=np.float32)), ok(cu.cuMemAlloc(COUNT * 4))
double = [u64(int(values)), u64(int(values)), u64(int(values)), u32(COUNT)]
ok(cu.cuStreamWaitEvent(stream, event, 0))
ok(cu.cuMemcpyPeerAsync(copied, contexts[1], source, contexts[0], COUNT * 4, stream))
ok(cu.cuMemcpyPeerAsync(source, contexts[0], copied, contexts[1], COUNT * 4, stream))
launch(functions["add"], -(-COUNT // 256), 256, double, stream)
print("ready", flush=True)

codes = [code_of(cu.cuStreamSynchronize, stream)]
for _ in range(20):
    launch(functions["add"], -(-COUNT // 256), 256, double, stream)
    codes.append(code_of(cu.cuStreamSynchronize, stream))
print("second", *sorted(set(codes[:1])), *sorted(set(codes[1:])), flush=True)
assert (download(values, COUNT, np.float32) == np.arange(COUNT, dtype=np.float32) * 2**21).all()

ok(cu.cuCtxSetCurrent(contexts[0]))
print("first", *(code_of(cu.cuStreamSynchronize, lost) for _ in range(3)), code_of(cu.cuMemAlloc, 4), flush=True)
ok(cu.cuCtxSetCurrent(contexts[1]))
assert code_of(cu.cuEventQuery, event) == 911
assert code_of(cu.cuMemcpyPeer, copied, contexts[1], source, contexts[0], 4) == 911
more = upload(np.ones(COUNT, np.float32))
assert (download(more, COUNT, np.float32) == 1).all()
print("ok")
