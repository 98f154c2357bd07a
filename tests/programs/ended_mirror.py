"""A kernel adds one to a word of page-locked memory; then this memory ends, by the call that the argument names. Prints
what the call answers, the word, and whether the device's memory is free again."""

import sys

from cu import code_of, cu, kernels, launch, ok, pinned, u64

WORD = 0x5EEDF00C

ok(cu.cuInit(0))
ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
context = ok(cu.cuCtxCreate(None, 0, 0))
increment = kernels()["increment"]
before, _ = ok(cu.cuMemGetInfo())
array = pinned(1024)
array[:] = WORD
device = ok(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0))
if sys.argv[1] == "destroy-busy":
    for _ in range(3000):
        launch(increment, 1, 1, [u64(int(device))])
    word = "busy"
else:
    launch(increment, 1, 1, [u64(int(device))])
    ok(cu.cuCtxSynchronize())
    word = hex(array[0])
if sys.argv[1] == "free":
    code, again = code_of(cu.cuMemFreeHost, array.ctypes.data), code_of(cu.cuMemFreeHost, array.ctypes.data)
    assert again == 1, "the memory is gone whatever the answer"
else:
    code = code_of(cu.cuCtxDestroy, context)
    ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
after, _ = ok(cu.cuMemGetInfo())
print(code, word, after >= before)
