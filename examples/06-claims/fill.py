"""Fill part of the GPU's memory and keep it until SIGTERM: `fill.py 0.6`."""

import signal
import sys

from cuda.bindings import driver


def ok(result):
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error.name)
    return values[0] if values else None


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))))
total = ok(driver.cuDeviceTotalMem(0))
wanted = int(total * float(sys.argv[1]))
print(f"{total >> 20} MiB in all", flush=True)
try:
    ok(driver.cuMemAlloc(wanted))
    print(f"has {wanted >> 20} MiB", flush=True)
except RuntimeError as error:
    print(f"gets no {wanted >> 20} MiB: {error}", flush=True)
signal.pause()
