"""Exports that are given up make room for others, whichever way they are given up. Prints "room"."""

from cu import cu, ok, start
from share_events import SHARED, event_handle
from share_memory import handle_of

# More than a lease can export at a time.
MANY = 270
# So large that it is not cached when it is freed.
LARGE = 34 << 20


def context():
    return ok(cu.cuCtxCreate(None, 0, ok(cu.cuDeviceGet(0))))


if __name__ == "__main__":
    start()
    for _ in range(MANY):
        event = ok(cu.cuEventCreate(SHARED))
        event_handle(event)
        ok(cu.cuEventDestroy(event))
    for _ in range(MANY):
        pointer = ok(cu.cuMemAlloc(LARGE))
        handle_of(pointer)
        ok(cu.cuMemFree(pointer))
    for _ in range(MANY):
        own = context()
        event_handle(ok(cu.cuEventCreate(SHARED)))
        ok(cu.cuCtxDestroy(own))
    print("room")
