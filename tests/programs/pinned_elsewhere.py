"""Page-locked memory of one device given to kernels of another, and registered memory: prints what each kernel finds.

Natively a kernel finds all of it. So do devices of one appliance; those of two find their own, and a launch that only
carries such an address works. The argument: how many elements of the other device's memory are touched.
"""

import mmap
import sys

import numpy as np
from cu import cu, download, kernels, launch, ok, pinned, start, u32, u64

touched = int(sys.argv[1])
contexts = [start(0), start(1)]
own, functions = [], []
for context in contexts:
    ok(cu.cuCtxSetCurrent(context))
    own.append(pinned(256))
    functions.append(kernels())
pages = mmap.mmap(-1, 4096)
registered = np.frombuffer(pages, np.uint32)[:256]
ok(cu.cuMemHostRegister(registered.ctypes.data, 1024, 0))

for device, context in enumerate(contexts):
    ok(cu.cuCtxSetCurrent(context))
    own[device][:] = 0x3F800000 + device
    out = ok(cu.cuMemAlloc(1024))
    at = u64(own[device].ctypes.data)
    launch(functions[device]["add"], 1, 256, [at, at, u64(int(out)), u32(256)])
    ok(cu.cuCtxSynchronize())
    print("own", device, bool((download(out, 256, np.float32) == 2 * own[device].view(np.float32)).all()))
    # If n is 0, no element is touched.
    own[1 - device][:] = 0x40000000
    at = u64(own[1 - device].ctypes.data)
    launch(functions[device]["add"], 1, 256, [at, at, u64(int(out)), u32(touched)])
    ok(cu.cuCtxSynchronize())
    print("other", device, bool((download(out, 256, np.float32)[:touched] == 4).all()))
    at = u64(registered.ctypes.data)
    launch(functions[device]["add"], 1, 256, [at, at, u64(int(out)), u32(0)])
    ok(cu.cuCtxSynchronize())
    registered[:] = 0x3F800000
    place = u64(int(ok(cu.cuMemHostGetDevicePointer(registered.ctypes.data, 0)))) if device == 0 else u64(int(out))
    launch(functions[device]["add"], 1, 256, [place, place, u64(int(out)), u32(256 if device == 0 else 0)])
    ok(cu.cuCtxSynchronize())
    print("registered", device, bool((download(out, 256, np.float32) == 2).all()))
for array in own:
    ok(cu.cuMemFreeHost(array.ctypes.data))
ok(cu.cuMemHostUnregister(registered.ctypes.data))
