"""Prints by the machine's clock when this process began and, without `--no-cuda`, when the GPU first answered."""

import sys
import time

print(f"began {time.time():.4f}", flush=True)
if "--no-cuda" not in sys.argv:
    from cu import cu, ok, start

    print(f"imported {time.time():.4f}", flush=True)
    start()
    ok(cu.cuMemAlloc(4096))
    ok(cu.cuCtxSynchronize())
    print(f"answered {time.time():.4f}", flush=True)
