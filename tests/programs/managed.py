"""Managed memory: prints what kernels and the program find of each other. The first argument says which part."""

import ctypes
import sys
import threading

import numpy as np
from cu import CudaError, cu, download, kernels, launch, ok, start, u32, u64

ONE, TWO = 0x3F800000, 0x40000000
GLOBAL = 1


def managed(count):
    """A NumPy view of `count` words of managed memory."""
    address = int(ok(cu.cuMemAllocManaged(4 * count, GLOBAL)))
    return np.frombuffer((ctypes.c_char * (4 * count)).from_address(address), np.uint32)


def add(function, one, two, out, count=256):
    launch(function, 1, count, [u64(one), u64(two), u64(out), u32(count)])


def limit(mib):
    """An allocation of that many MiB together with a small one, and the rest of the share."""
    start()
    functions = kernels()
    small = managed(256)
    small[:] = ONE
    before = ok(cu.cuMemGetInfo())[0]
    try:
        large = managed(int(mib) << 18)
        print("large 0", bool((large == 0).all()))
        ok(cu.cuMemFree(large.ctypes.data))
    except CudaError as error:
        print("large", error.code)
    print("free as before", ok(cu.cuMemGetInfo())[0] == before)
    add(functions["add"], small.ctypes.data, small.ctypes.data, small.ctypes.data)
    ok(cu.cuCtxSynchronize())
    print("small", bool((small == TWO).all()))


def two_devices():
    """Each device changes memory of the other in turn."""
    contexts = [start(0), start(1)]
    own, functions = [], []
    for context in contexts:
        ok(cu.cuCtxSetCurrent(context))
        own.append(managed(256))
        functions.append(kernels()["add"])
    for round_ in range(3):
        for device, context in enumerate(contexts):
            ok(cu.cuCtxSetCurrent(context))
            own[0][:], own[1][:] = ONE, TWO
            one, two = own[device].ctypes.data, own[1 - device].ctypes.data
            add(functions[device], one, two, two)
            ok(cu.cuCtxSynchronize())
            print(round_, device, float(own[1 - device].view(np.float32).sum()), float(own[device].view(np.float32)[0]))


def graph():
    """A graph of two launches: each replay sees what the program wrote before it."""
    start()
    function, stream = kernels()["add"], ok(cu.cuStreamCreate(1))
    one, out = managed(256), managed(256)
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    for target in (one, out):
        at = [u64(one.ctypes.data), u64(one.ctypes.data), u64(target.ctypes.data), u32(256)]
        launch(function, 1, 256, at, stream)
    executable = ok(cu.cuGraphInstantiate(ok(cu.cuStreamEndCapture(stream)), 0))
    for value in (1.0, 5.0, 0.25):
        one.view(np.float32)[:] = value
        for _ in range(2):
            ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuStreamSynchronize(stream))
        print(value, sorted(set(one.view(np.float32).tolist())), sorted(set(out.view(np.float32).tolist())))


def threads():
    """One thread launches and waits while another allocates and frees: each is right by itself."""
    context = start()
    function = kernels()["add"]
    wrong, done = [], threading.Event()

    def others():
        ok(cu.cuCtxSetCurrent(context))
        while not done.is_set():
            pieces = [managed(1 << 14) for _ in range(4)]
            for piece in pieces:
                piece[:] = ONE
            for piece in pieces:
                ok(cu.cuMemFree(piece.ctypes.data))

    def work():
        own = managed(256)
        for round_ in range(400):
            own.view(np.float32)[:] = round_
            add(function, own.ctypes.data, own.ctypes.data, own.ctypes.data)
            ok(cu.cuStreamSynchronize(0))
            if not (own.view(np.float32) == 2 * round_).all():
                wrong.append(round_)

    other = threading.Thread(target=others)
    other.start()
    try:
        work()
    finally:
        done.set()
        other.join()
    print("wrong", wrong, "devices", download(ok(cu.cuMemAlloc(4)), 1).size)


def both():
    """The program and a kernel write one word, the program before it has waited."""
    start()
    function = kernels()["add"]
    for _ in range(2):
        one, out = managed(256), managed(256)
        one[:] = ONE
        add(function, one.ctypes.data, one.ctypes.data, out.ctypes.data)
        out[3] = ONE
        ok(cu.cuCtxSynchronize())
        print(out.view(np.float32)[2:5].tolist())


parts = {"both": both, "limit": limit, "two_devices": two_devices, "graph": graph, "threads": threads}
parts[sys.argv[1]](*sys.argv[2:])
