"""Waits in a thread for memory that another process of the lease has not given back yet, and looks around meanwhile.

`beside_waiting.py HELD ASKED killed|freed`: another process holds HELD bytes. Prints "starts" before that process and
"holds" when it has them, and waits for a line after each; then kills it or has it free them, and asks for ASKED bytes.
Prints JSON: the code, what CUDA said was free and NVML was used before, the same for each round until the answer, and
what nvidia-smi said was used in the first round.
"""

import json
import subprocess
import sys
import threading

import pynvml
from cu import code_of, cu, ok, start

held, asked, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if sys.argv[4:] == ["hold"]:
    start()
    memory = ok(cu.cuMemAlloc(held))
    print("holds", flush=True)
    sys.stdin.readline()
    ok(cu.cuMemFree(memory))
    print("freed", flush=True)
    sys.stdin.read()
    sys.exit(0)

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
context = start()
small, stream = ok(cu.cuMemAlloc(4096)), ok(cu.cuStreamCreate(1))


def look():
    """Returns what CUDA says is free, and NVML is used."""
    return ok(cu.cuMemGetInfo())[0], pynvml.nvmlDeviceGetMemoryInfo(gpu).used


before = look()
print("starts", flush=True)
sys.stdin.readline()
holder = subprocess.Popen([sys.executable, *sys.argv, "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(holder.stdout.readline(), end="", flush=True)
sys.stdin.readline()
if how == "killed":
    holder.kill()
    holder.wait()
else:
    holder.stdin.write("\n")
    holder.stdin.flush()
    holder.stdout.readline()
codes = []


def ask():
    ok(cu.cuCtxSetCurrent(context))
    codes.append(code_of(cu.cuMemAlloc, asked))


asking = threading.Thread(target=ask)
asking.start()
rounds, shown = [], ""
while not codes:
    ok(cu.cuMemcpyDtoDAsync(small, int(small) + 2048, 2048, stream))
    ok(cu.cuStreamSynchronize(stream))
    rounds.append(look())
    pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    if not shown:
        words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
asking.join()
holder.kill()
holder.wait()
print(json.dumps({"code": codes[0], "before": before, "rounds": rounds, "smi": int(shown) << 20}))
