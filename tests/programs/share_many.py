"""What is exported and given up makes room for other exports, whichever way it is given up. Prints "room"."""

from cu import cu, ok, start
from share_events import SHARED, event_handle
from share_memory import handle_of

# More than a lease can export at a time.
MANY = 270
# So large that it is not kept for later when it is freed.
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
