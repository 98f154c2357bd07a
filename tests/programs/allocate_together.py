"""Four spawned processes of one lease allocate at once until nothing is left; prints the bytes of each."""

import multiprocessing
import sys

from cu import CudaError, cu, ok, start


def allocate(barrier, results):
    start()
    barrier.wait()
    pieces = 0
    try:
        while True:
            ok(cu.cuMemAlloc(2 << 20))
            pieces += 1
    except CudaError as error:
        assert error.code == 2, error
    barrier.wait()  # nobody gives back before all have seen the end
    results.put(pieces * (2 << 20))


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    gate, results = spawn.Barrier(4), spawn.Queue()
    processes = [spawn.Process(target=allocate, args=(gate, results)) for _ in range(4)]
    for process in processes:
        process.start()
    print(*(results.get(timeout=100) for _ in processes))
    for process in processes:
        process.join()
    sys.exit(max(p.exitcode for p in processes))
