"""For each number on standard input allocates so many MiB, or frees what was allocated with as many, and prints "ok" or
"error CODE"; for "say" it prints the MiB that it has, and that CUDA, NVML and a new process say there are."""

import subprocess
import sys

import pynvml
from cu import CudaError, cu, ok, start

MIB = 1 << 20
ASK = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).total)"
start()
pynvml.nvmlInit()
pieces = []
for order in sys.stdin:
    if order.strip() == "say":
        free, total = ok(cu.cuMemGetInfo())
        here = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
        there = int(subprocess.run([sys.executable, "-c", ASK], check=True, capture_output=True).stdout)
        has = sum(size for size, _ in pieces)
        print(has, *(number // MIB for number in (free, total, here, there)), flush=True)
        continue
    size = int(order)
    try:
        if size < 0:
            piece = next(piece for piece in pieces if piece[0] == -size)
            pieces.remove(piece)
            ok(cu.cuMemFree(piece[1]))
        else:
            pieces.append((size, ok(cu.cuMemAlloc(size * MIB))))
        print("ok", flush=True)
    except CudaError as error:
        print("error", error.code, flush=True)
