"""Launches a graph of 1,000 kernels TIMES times: `graph_launches.py TIMES`."""

import sys

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u64, upload

KERNELS, times = 1000, int(sys.argv[1])
start()
function, counter = kernels()["increment"], upload(np.zeros(1, np.uint32))
stream = ok(cu.cuStreamCreate(1))
ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
for _ in range(KERNELS):
    launch(function, 1, 1, [u64(int(counter))], stream)
graph = ok(cu.cuStreamEndCapture(stream))
executable = ok(cu.cuGraphInstantiate(graph, 0))
for _ in range(times):
    ok(cu.cuGraphLaunch(executable, stream))
ok(cu.cuStreamSynchronize(stream))
assert download(counter, 1)[0] == KERNELS * times
print("ok")
