"""Makes more streams than it may have and prints the codes of what it asks and waits for afterwards; the first argument
says how it learns that an event is complete: by a question, or because it asked about the event before."""

import sys

from cu import code_of, cu, ok, start

NOT_READY, LEGACY = 600, 0
start()
event = ok(cu.cuEventCreate(2))


def polled():
    ok(cu.cuEventRecord(event, LEGACY))
    while (code := code_of(cu.cuEventQuery, event)) == NOT_READY:
        pass
    return code


ok(cu.cuStreamSynchronize(LEGACY))
if sys.argv[1] == "followed":
    assert polled() == 0
made = [ok(cu.cuStreamCreate(1)) for _ in range(5)]
codes = [polled(), code_of(cu.cuEventSynchronize, event)]
codes += [code_of(cu.cuStreamSynchronize, LEGACY), code_of(cu.cuCtxSynchronize), code_of(cu.cuStreamQuery, LEGACY)]
print(*codes)
