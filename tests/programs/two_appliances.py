"""Two devices that know nothing of each other: copies between them, and waits of one for the other."""

import numpy as np
from cu import cu, download, kernels, launch, ok, pinned, u32, u64, upload

COUNT = 1_500_000  # more than one piece of a bulk copy


ok(cu.cuInit(0))
assert ok(cu.cuDeviceGetCount()) == 2
devices = [ok(cu.cuDeviceGet(i)) for i in range(2)]
assert len({ok(cu.cuDeviceGetUuid(device)).bytes for device in devices}) == 2
first, second = (ok(cu.cuDevicePrimaryCtxRetain(device)) for device in devices)

ok(cu.cuCtxSetCurrent(first))
numbers = np.arange(COUNT, dtype=np.float32)
here = upload(numbers)
ok(cu.cuCtxSetCurrent(second))
there, again = (ok(cu.cuMemAlloc(numbers.nbytes)) for _ in range(2))
assert int(here) != int(there), "an address names one memory"
ok(cu.cuMemcpyPeer(there, second, here, first, numbers.nbytes))
ok(cu.cuMemcpyDtoD(again, here, numbers.nbytes))
for copy in (there, again):
    assert (download(copy, COUNT, np.float32) == numbers).all()

# The second device adds; a stream of the first waits for that, and the sum comes back by the first's context.
functions = kernels()
stream, event = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(0))
launch(functions["add"], -(-COUNT // 256), 256, [u64(int(there)), u64(int(again)), u64(int(there)), u32(COUNT)], stream)
ok(cu.cuEventRecord(event, stream))
ok(cu.cuCtxSetCurrent(first))
waiting = ok(cu.cuStreamCreate(1))
ok(cu.cuStreamWaitEvent(waiting, event, 0))
total = pinned(COUNT, np.float32)
ok(cu.cuMemcpyDtoHAsync(total.ctypes.data, there, numbers.nbytes, waiting))
ok(cu.cuStreamSynchronize(waiting))
assert (total == 2 * numbers).all()
print("ok")
