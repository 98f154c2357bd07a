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
    os.write(1, f"child {code}\n".encode())  # one write: both processes print at once
    time.sleep(120)
    os._exit(0)
os.write(1, f"parent {child}\n".encode())
signal.pause()
