"""Leaves captures without an end: `abandon_capture.py exit|crash|return|thread`. With `thread` a thread begins one and
ends, and the program continues: prints what becomes of the capture, and how often its kernel ran."""

import os
import signal
import sys
import threading

import numpy as np
from cu import CudaError, cu, download, kernels, launch, ok, start, u64, upload

how = sys.argv[1]
modes = cu.CUstreamCaptureMode
context = start()
function, counter = kernels()["increment"], upload(np.zeros(1, np.uint32))


def begin(stream, mode=modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL):
    """A capture with kernels, memory of its own, and a second stream."""
    ok(cu.cuStreamBeginCapture(stream, mode))
    fork, side = ok(cu.cuEventCreate(2)), ok(cu.cuStreamCreate(1))
    launch(function, 1, 1, [u64(int(counter))], stream)
    ok(cu.cuMemAllocAsync(8 << 20, stream))
    ok(cu.cuEventRecord(fork, stream))
    ok(cu.cuStreamWaitEvent(side, fork, 0))
    launch(function, 1, 1, [u64(int(counter))], side)
    return side


def code(call):
    try:
        call()
    except CudaError as error:
        return error.code
    return 0


def whole_graph(stream):
    ok(cu.cuStreamBeginCapture(stream, modes.CU_STREAM_CAPTURE_MODE_GLOBAL))
    for _ in range(10):
        launch(function, 1, 1, [u64(int(counter))], stream)
    executable = ok(cu.cuGraphInstantiate(ok(cu.cuStreamEndCapture(stream)), 0))
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuGraphExecDestroy(executable))


stream = ok(cu.cuStreamCreate(1))
# The session's earlier objects: an executable with memory, and other memory.
ok(cu.cuMemAlloc(32 << 20))
ok(cu.cuStreamBeginCapture(stream, modes.CU_STREAM_CAPTURE_MODE_RELAXED))
ok(cu.cuMemAllocAsync(16 << 20, stream))
launch(function, 1, 1, [u64(int(counter))], stream)
executable = ok(cu.cuGraphInstantiate(ok(cu.cuStreamEndCapture(stream)), 0))
ok(cu.cuGraphLaunch(executable, stream))
ok(cu.cuStreamSynchronize(stream))

if how == "thread":

    def abandon():
        ok(cu.cuCtxSetCurrent(context))
        begin(stream)

    thread = threading.Thread(target=abandon)
    thread.start()
    thread.join()
    # Only its own thread may end it, and that is gone; the stream's end is the capture's.
    wrong_thread = code(lambda: ok(cu.cuStreamEndCapture(stream)))
    elsewhere = ok(cu.cuStreamCreate(1))
    whole_graph(elsewhere)
    still = code(lambda: launch(function, 1, 1, [u64(int(counter))], stream))
    ok(cu.cuStreamDestroy(stream))
    whole_graph(elsewhere)
    ok(cu.cuCtxSynchronize())
    print(wrong_thread, still, download(counter, 1)[0], flush=True)
else:
    begin(stream)
    print("ready", flush=True)
    if how == "exit":
        os._exit(0)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
