"""A process exports memory and is killed while another one has it: it stays, and counts once. Prints "kept"."""

import multiprocessing
import time

import numpy as np
from cu import cu, download, kernels, ok, start, take_all, upload
from share_memory import handle_of, opened

MIB = 1 << 20
SIZE, OWN = 192 * MIB, 96 * MIB
SECONDS = 20


def export(pipe):
    start()
    ok(cu.cuMemAlloc(OWN))
    pointer = ok(cu.cuMemAlloc(SIZE))
    ok(cu.cuMemsetD8(pointer, 0x5A, SIZE))
    ok(cu.cuCtxSynchronize())
    pipe.send(handle_of(pointer))
    pipe.recv()


def free():
    return ok(cu.cuMemGetInfo())[0]


def wait_until(what):
    until = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < until, f"{free() / MIB:.0f} MiB are free"
        time.sleep(0.02)


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    start()
    kernels()
    upload(np.arange(16, dtype=np.uint32))
    whole = free()
    process = spawn.Process(target=export, args=(theirs,))
    process.start()
    theirs.close()
    handle = ours.recv()
    before = free()
    assert before <= whole - SIZE - OWN, (whole, before)
    pointer = opened(handle)
    assert free() == before, "charged again"
    process.kill()
    process.join()
    # The killed process' own memory comes back, what it exported is still here.
    wait_until(lambda: free() == whole - SIZE)
    assert (download(pointer, SIZE, np.uint8) == 0x5A).all()
    taken = list(take_all())
    assert sum(size for _, size in taken) <= whole - SIZE
    for piece, _ in taken:
        ok(cu.cuMemFree(piece))
    ok(cu.cuIpcCloseMemHandle(pointer))
    wait_until(lambda: free() == whole)
    print("kept")
