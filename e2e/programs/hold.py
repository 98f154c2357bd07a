"""Holds memory on every GPU and works on it until SIGTERM: each round every thread of a kernel adds one, and the
host checks the sum.

    hold.py [--mib N] [--rounds N] [--pause S]

Prints `ready`, then `round N`; at the end `ok N` if every GPU's sum was right in all rounds.
"""

import argparse
import signal
import time

from cu import cu, download, kernels, launch, ok, u64

parser = argparse.ArgumentParser()
parser.add_argument("--mib", type=int, default=8)
parser.add_argument("--rounds", type=int, default=0, help="0: until SIGTERM")
parser.add_argument("--pause", type=float, default=0.2, help="seconds between rounds")
options = parser.parse_args()

ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))

ok(cu.cuInit(0))
THREADS = 256
held = []
for number in range(ok(cu.cuDeviceGetCount())):
    context = ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(number))))
    ok(cu.cuCtxSetCurrent(context))
    memory = ok(cu.cuMemAlloc(options.mib << 20))
    ok(cu.cuMemsetD32(memory, 0, 1))
    held.append((context, memory, kernels()["increment"]))
print(f"ready {len(held)} GPUs", flush=True)

rounds = 0
while not ended and (not options.rounds or rounds < options.rounds):
    rounds += 1
    for context, memory, increment in held:
        ok(cu.cuCtxSetCurrent(context))
        launch(increment, 1, THREADS, [u64(int(memory))])
        assert download(memory, 1)[0] == rounds * THREADS, f"round {rounds} is wrong"
    print(f"round {rounds}", flush=True)
    time.sleep(options.pause)
print(f"ok {rounds}", flush=True)
