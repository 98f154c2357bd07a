"""Says where it is, and waits for a line: `lose_in_graph.py capture|instantiate|launch`. Prints the code of the rest of
the graph's calls, and that of a later call."""

import sys

import numpy as np
from cu import CudaError, cu, kernels, launch, ok, start, u64, upload

where = sys.argv[1]
start()
function, counter = kernels()["increment"], upload(np.zeros(1, np.uint32))
stream = ok(cu.cuStreamCreate(1))


def pause(place):
    if place == where:
        print("ready", flush=True)
        sys.stdin.readline()


def code(call):
    try:
        call()
    except CudaError as error:
        return error.code
    return 0


def capture():
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    for number in range(100):
        if number == 50:
            pause("capture")
        launch(function, 1, 1, [u64(int(counter))], stream)
    graph = ok(cu.cuStreamEndCapture(stream))
    pause("instantiate")
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphLaunch(executable, stream))
    pause("launch")
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))


first = code(capture)
print("error", first, code(lambda: ok(cu.cuMemAlloc(64))), flush=True)
