"""Asks of streams and events what a call that waited has told already, as often as it is told to. That call is the only
one of a round that has to ask the GPU: seven of them."""

import sys

import numpy as np
from cu import cu, ok, start

start()
LEGACY = 0
streams = [LEGACY, *(ok(cu.cuStreamCreate(flags)) for flags in cu.CUstream_flags)]
assert len(streams) == 3
event = ok(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
memory, found = ok(cu.cuMemAlloc(64)), np.zeros(16, np.uint32)


def work(stream):
    ok(cu.cuMemsetD32Async(memory, 7, 16, stream))
    ok(cu.cuEventRecord(event, stream))


def ask(stream):
    ok(cu.cuEventQuery(event))
    ok(cu.cuEventSynchronize(event))
    ok(cu.cuStreamWaitEvent(stream, event, 0))
    ok(cu.cuStreamQuery(stream))


for _ in range(int(sys.argv[1])):
    for stream in streams:
        work(stream)
        ok(cu.cuStreamSynchronize(stream))
        ask(stream)
        work(stream)
        ok(cu.cuCtxSynchronize())
        ask(stream)
        ok(cu.cuStreamQuery(LEGACY))
    work(LEGACY)
    ok(cu.cuMemcpyDtoH(found, memory, 64))
    ask(LEGACY)
    assert (found == 7).all()
