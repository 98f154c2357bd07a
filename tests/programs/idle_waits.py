"""Waits for what it knows to be complete, as often as it is told to. The first wait of each kind has to ask the GPU."""

import ctypes
import sys

from cu import cu, kernels, launch, ok, pinned, start, u64

LEGACY, PER_THREAD = 0, 2
start()
events = [ok(cu.cuEventCreate(flags)) for flags in cu.CUevent_flags if flags.value in (0, 2)]
streams = [LEGACY, PER_THREAD, *(ok(cu.cuStreamCreate(flags)) for flags in cu.CUstream_flags)]
never_used = ok(cu.cuStreamCreate(1))
memory = ok(cu.cuMemAlloc(64))
increment = kernels()["increment"]


def work(stream):
    ok(cu.cuMemsetD32Async(memory, 7, 16, stream))


def again(wait, *what):
    for _ in range(int(sys.argv[1])):
        ok(wait(*what))


for stream in streams:
    work(stream)
    ok(cu.cuStreamSynchronize(stream))
    again(cu.cuStreamSynchronize, stream)
ok(cu.cuStreamSynchronize(never_used))
again(cu.cuStreamSynchronize, never_used)
ok(cu.cuCtxSynchronize())
again(cu.cuCtxSynchronize)
for event in events:
    work(streams[-1])
    ok(cu.cuEventRecord(event, streams[-1]))
    ok(cu.cuEventSynchronize(event))
    again(cu.cuEventSynchronize, event)
ok(cu.cuStreamSynchronize(streams[-1]))
again(cu.cuStreamSynchronize, streams[-1])

# What idle waits still do: they send what the host wrote, also for a stream that is given nothing.
word = pinned(1)
word[0] = 0
device = int(ok(cu.cuMemHostGetDevicePointer(word.ctypes.data, 0)))
for expected in (1, 42):
    launch(increment, 1, 1, [u64(device)], streams[-1])
    ok(cu.cuStreamSynchronize(streams[-1]))
    assert word[0] == expected
    word[0] = 41
    ok(cu.cuStreamSynchronize(streams[-1]))

# What has yet to run for a stream is waited for by a wait for that stream alone.
flag, called = pinned(1), []
flag[0] = 0
ok(cu.cuStreamWaitValue32(streams[-1], flag.ctypes.data, 1, 1))
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: called.append(1))
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuLaunchHostFunc(ctypes.c_void_p(int(streams[-1])), function, None) == 0
ok(cu.cuStreamSynchronize(never_used))
assert not called
flag[0] = 1
ok(cu.cuStreamSynchronize(streams[-1]))
assert called == [1]
print("ok")
