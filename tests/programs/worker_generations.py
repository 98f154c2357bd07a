"""Workers of a program that does not use CUDA itself, one generation after the other, as loaders and pools have them.

The arguments are the start method and how much each worker takes, in percent of the memory. It finds that zeroed, and
computes; it leaves by `os._exit`, as multiprocessing has it, or is killed at work. Prints "ok"."""

import concurrent.futures
import multiprocessing
import os
import signal
import sys

from cu import cu, download, kernels, launch, ok, start, u64

GENERATIONS, PERCENT = 2, int(sys.argv[2])
WORDS = 1 << 16


def work(number):
    start()
    size = ok(cu.cuMemGetInfo())[1] * PERCENT // 100
    taken = ok(cu.cuMemAlloc(size))
    ends = [int(taken), int(taken) + size // 8 * 4, int(taken) + size // 4 * 4 - 4 * WORDS]
    for at in ends:
        assert not download(at, WORDS).any(), "another worker's memory"
    ok(cu.cuMemsetD32(taken, 0xA5A5A5A5, size // 4))
    ok(cu.cuMemsetD32(taken, number, WORDS))
    launch(kernels()["increment"], 1, 1, [u64(int(taken))])
    computed = download(int(taken), WORDS)
    assert computed[0] == number + 1 and (computed[1:] == number).all()
    return number


def work_and_die(number):
    work(number)
    os.kill(os.getpid(), signal.SIGKILL)


def generations(context):
    for generation in range(GENERATIONS):
        for target, code in ((work, 0), (work_and_die, -signal.SIGKILL)):
            worker = context.Process(target=target, args=(generation,))
            worker.start()
            worker.join()
            assert worker.exitcode == code, f"{target.__name__}, generation {generation}: {worker.exitcode}"


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    generations(context)
    # A pool whose workers do one task each, and one with new workers for each task of an executor.
    with context.Pool(1, maxtasksperchild=1) as pool:
        assert pool.map(work, range(GENERATIONS), chunksize=1) == list(range(GENERATIONS))
    for number in range(GENERATIONS):
        with concurrent.futures.ProcessPoolExecutor(1, context) as executor:
            assert executor.submit(work, number).result() == number
    print("ok")
