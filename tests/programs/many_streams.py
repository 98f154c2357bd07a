"""Gives one of sixty streams after the other a thousand fills."""

from cu import cu, ok, start

start()
streams = [ok(cu.cuStreamCreate(1)) for _ in range(60)]
memory = ok(cu.cuMemAlloc(4 * len(streams)))

for place, stream in enumerate(streams):
    for value in range(1000):
        ok(cu.cuMemsetD32Async(int(memory) + 4 * place, value, 1, stream))
ok(cu.cuCtxSynchronize())
