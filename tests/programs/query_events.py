"""Records an event and asks until it is complete, as often as it is told to."""

import sys

from cu import cu, ok, start

start()
stream = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
event = ok(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
for _ in range(int(sys.argv[1])):
    ok(cu.cuEventRecord(event, stream))
    while (state := cu.cuEventQuery(event))[0] == cu.CUresult.CUDA_ERROR_NOT_READY:
        pass
    ok(state)
