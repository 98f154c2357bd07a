"""A thread waits for the GPU in one call, while a host function or another thread's call that ends this wait needs what
the first call holds. Prints "passed". Within SECONDS it says which call did not return, and fails."""

import contextlib
import ctypes
import faulthandler
import os
import sys
import threading

import numpy as np
from cu import access, cu, location, ok, pinned, start

SECONDS = 120
MIB = 1 << 20
HOLDS = {
    "unregister": "cuMemHostUnregister waits for a host function that needs the mirrors (lock `Mirror`)",
    "window": "a launch waits for copies behind a host function, under the lock of the mirrors (`Mirror`)",
    "pool": "cuMemPoolGetAccess waits for cuMemPoolSetAccess, which waits for work (lock `Readers`)",
    "mapping": "cuMemGetAccess waits for cuMemSetAccess, which waits for work (lock `Space`)",
}
READWRITE = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
NONE = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE

driver = ctypes.CDLL("libcuda.so.1")
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
kept = []


def call_on_host(stream, function):
    call = HostFunction(lambda _: function())
    kept.append(call)
    assert driver.cuLaunchHostFunc(ctypes.c_void_p(int(stream)), call, None) == 0


def mirrored(count):
    """Page-locked memory that has a mirror, and the address of the mirror."""
    array = pinned(count)
    return array, ok(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0))


@contextlib.contextmanager
def at_the_same_time(body):
    """Runs `body` on a thread during the block, and fails with its error."""
    errors = []

    def run():
        try:
            body()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join()
    assert not errors, errors


def unregister():
    context, stream = start(), ok(cu.cuStreamCreate(1))
    memory, _other = ok(cu.cuMemAlloc(64)), mirrored(1024)
    few, ended = threading.Semaphore(8), threading.Event()

    def post():
        ok(cu.cuCtxSetCurrent(context))
        while not ended.is_set():
            assert few.acquire(timeout=SECONDS)
            ok(cu.cuMemsetD32Async(memory, 7, 16, stream))
            call_on_host(stream, few.release)

    with at_the_same_time(post):
        for _ in range(10):
            array = np.zeros(48 * MIB, np.uint8)
            ok(cu.cuMemHostRegister(array.ctypes.data, array.nbytes, 0))
            ok(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0))
            ok(cu.cuMemHostUnregister(array.ctypes.data))
        ended.set()
    ok(cu.cuCtxSynchronize())


def window():
    """Copies of pageable memory wait behind a host function until no more of them can be under way."""
    context = start()
    streams = [ok(cu.cuStreamCreate(1)) for _ in range(2)]
    array, device = mirrored(1024)
    target, source, opened = ok(cu.cuMemAlloc(8 * MIB)), np.ones(8 * MIB, np.uint8), threading.Event()
    call_on_host(streams[0], opened.wait)
    copied = threading.Semaphore(0)

    def copy():
        ok(cu.cuCtxSetCurrent(context))
        for _ in range(40):
            ok(cu.cuMemcpyHtoDAsync(target, source, source.nbytes, streams[0]))
            copied.release()

    with at_the_same_time(copy):
        for _ in range(31):
            assert copied.acquire(timeout=SECONDS)
        for value in range(100):
            array[:] = value
            ok(cu.cuMemsetD32Async(device, value + 1, 1, streams[1]))
            ok(cu.cuStreamSynchronize(streams[1]))
            assert (array[0], array[1]) == (value + 1, value)
        opened.set()
    ok(cu.cuCtxSynchronize())


def take_back(allow, forbid, flags):
    """Takes the second device's access back while that device works until the access is seen to be gone."""
    context = start(1)
    stream, memory, opened = ok(cu.cuStreamCreate(1)), ok(cu.cuMemAlloc(64)), threading.Event()
    allow()
    assert int(flags()) == int(READWRITE)
    call_on_host(stream, opened.wait)
    ok(cu.cuMemsetD32Async(memory, 7, 16, stream))

    def end():
        ok(cu.cuCtxSetCurrent(context))
        forbid()

    with at_the_same_time(end):
        while int(flags()) != int(NONE):
            pass
        opened.set()
    ok(cu.cuCtxSynchronize())


def pool():
    start(0)
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = location(0)
    made = ok(cu.cuMemPoolCreate(properties))
    set_access = lambda flags: ok(cu.cuMemPoolSetAccess(made, [access(1, flags)], 1))  # noqa: E731
    flags = lambda: ok(cu.cuMemPoolGetAccess(made, location(1)))  # noqa: E731
    take_back(lambda: set_access(READWRITE), lambda: set_access(NONE), flags)


def mapping():
    start(0)
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = location(0)
    size = 2 * MIB
    address = ok(cu.cuMemAddressReserve(size, 0, 0, 0))
    ok(cu.cuMemMap(address, size, 0, ok(cu.cuMemCreate(size, properties, 0)), 0))
    set_access = lambda flags: ok(cu.cuMemSetAccess(address, size, [access(1, flags)], 1))  # noqa: E731
    flags = lambda: ok(cu.cuMemGetAccess(location(1), address))  # noqa: E731
    take_back(lambda: set_access(READWRITE), lambda: set_access(NONE), flags)


def give_up():
    print(f"after {SECONDS} s: {HOLDS[sys.argv[1]]}", file=sys.stderr, flush=True)
    faulthandler.dump_traceback()
    os._exit(1)


limit = threading.Timer(SECONDS, give_up)
limit.daemon = True
limit.start()
{"unregister": unregister, "window": window, "pool": pool, "mapping": mapping}[sys.argv[1]]()
limit.cancel()
print("passed")
