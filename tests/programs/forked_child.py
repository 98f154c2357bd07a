"""Attaches, forks a child that sleeps on, and waits to be killed; the child must keep nothing attached."""

import os
import signal
import time

from cu import cu, ok, start

start()
ok(cu.cuMemAlloc(1 << 20))
child = os.fork()
if child == 0:
    code = int(cu.cuCtxSynchronize()[0])
    print(f"child {code}", flush=True)
    time.sleep(120)
    os._exit(0)
print(f"parent {child}", flush=True)
signal.pause()
