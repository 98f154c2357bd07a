"""A captured stream of CuPy, launched for each step: `cupy_graphs.py [STEPS]`."""

import sys

import cupy

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    a, b = cupy.ones((256, 256), dtype=cupy.float32), cupy.zeros((256, 256), dtype=cupy.float32)
    cupy.add(a, b, out=b)
    stream.begin_capture()
    for _ in range(20):
        cupy.add(a, b, out=b)
        cupy.multiply(a, b, out=a)
    graph = stream.end_capture()
    for _ in range(steps):
        graph.launch(stream)
        b[0, 0].item()
print(f"{steps} steps")
