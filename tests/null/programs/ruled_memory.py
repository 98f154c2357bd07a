"""Prints as JSON what memory holds after kernels that a null GPU's rules are for: `ruled_memory.py`.

Rules write 5 behind the first word of add's third parameter, once for each block, and 0.5 to increment's parameter.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "programs"))

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u32, u64, upload

start()
functions = kernels()
words = upload(np.zeros(4, np.uint32))
copied = upload(np.zeros(4, np.uint32))
stream = ok(cu.cuStreamCreate(1))


def add():
    launch(functions["add"], 2, 32, [u64(int(words)), u64(int(words)), u64(int(words)), u32(4)], stream)


def fill(value):
    ok(cu.cuMemsetD32Async(words, value, 4, stream))


def read(pointer):
    ok(cu.cuStreamSynchronize(stream))
    return download(pointer, 4).tolist()


found = {"before": read(words)}
add()
found["after a launch"] = read(words)
fill(7)
add()
ok(cu.cuMemcpyDtoDAsync(copied, words, 16, stream))
fill(9)
found["between two fills"] = [read(copied), read(words)]

ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
add()
graph = ok(cu.cuStreamEndCapture(stream))
found["after a capture"] = read(words)
executable = ok(cu.cuGraphInstantiate(graph, 0))
found["replays"] = []
for value in (1, 2):
    fill(value)
    ok(cu.cuGraphLaunch(executable, stream))
    found["replays"].append(read(words))

launch(functions["increment"], 1, 1, [u64(int(copied))], stream)
ok(cu.cuStreamSynchronize(stream))
found["a float"] = float(download(copied, 1, np.float32)[0])
print(json.dumps(found))
