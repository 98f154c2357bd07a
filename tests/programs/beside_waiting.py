"""Waits in a thread for memory that a killed process has not given back, and counts what it can do meanwhile.

`beside_waiting.py BYTES`: prints "holds" when another process of the lease holds so much, waits for a line, kills that
process and asks for as much. Then prints the code, and how often another stream's work, CUDA and NVML answered before.
"""

import subprocess
import sys
import threading

import pynvml
from cu import code_of, cu, ok, start

size = int(sys.argv[1])
if sys.argv[2:] == ["hold"]:
    start()
    ok(cu.cuMemAlloc(size))
    print("holds", flush=True)
    sys.stdin.read()
    sys.exit(0)

words = [sys.executable, __file__, str(size), "hold"]
holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(holder.stdout.readline(), end="", flush=True)
sys.stdin.readline()
holder.kill()
holder.wait()

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
context = start()
small, stream = ok(cu.cuMemAlloc(4096)), ok(cu.cuStreamCreate(1))
codes = []


def ask():
    ok(cu.cuCtxSetCurrent(context))
    codes.append(code_of(cu.cuMemAlloc, size))


asking = threading.Thread(target=ask)
asking.start()
rounds = 0
while not codes:
    ok(cu.cuMemsetD8Async(small, 1, 4096, stream))
    ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemGetInfo())
    pynvml.nvmlDeviceGetMemoryInfo(gpu)
    pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    rounds += 1
asking.join()
print(codes[0], rounds)
