"""Measures the CPU time of the operator's allocator for a pool of many GPUs, in one process without an API server.

.venv/bin/python tools/bench_allocator.py [GPUS CLAIMS]
"""

import os
import random
import sys
import time
from collections.abc import Callable
from statistics import median

from remotegpu.api.pools import AppliancePhase, ApplianceStatus, GpuStatus
from remotegpu.api.quantities import Ask
from remotegpu_operator.allocation import Allocator, Placed, Request

GPUS_OF_AN_APPLIANCE = 8
MEMORY = 80 << 30
PARTS = (100, 125, 200, 250, 333, 500, 750, 1000)
TIMES = 100


def appliance(number: int) -> ApplianceStatus:
    gpus = (GpuStatus(f"GPU-{number}-{n}", "NVIDIA H100", MEMORY, MEMORY) for n in range(GPUS_OF_AN_APPLIANCE))
    return ApplianceStatus(f"appliance-{number:05}", f"node-{number:05}", AppliancePhase.READY, gpus=tuple(gpus))


def request(number: int, chance: random.Random) -> Request:
    ask = Ask(1, chance.choice(PARTS))
    created = f"2026-11-30T00:{number // 600 % 60:02}:{number // 10 % 60:02}Z"
    return Request(f"uid-{number}", f"team-{number % 20}", f"claim-{number:06}", "pool", ask, created=created)


def seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def main(gpus: int, claims: int) -> None:
    """Places claims, then repeatedly releases one and submits another. Prints seconds and milliseconds."""
    allocator, chance = Allocator(), random.Random(1)
    allocator.set_pool("pool", map(appliance, range(gpus // GPUS_OF_AN_APPLIANCE)))
    began = time.process_time()
    for number in range(claims):
        allocator.submit(request(number, chance))
    placed = [each.request.uid for each in allocator.settle() if isinstance(each, Placed)]
    taken = time.process_time() - began
    waiting = allocator.waiting()
    departures, arrivals = [], []
    for number, uid in enumerate(chance.sample(placed, TIMES)):
        allocator.release(uid)
        departures.append(seconds(allocator.settle))
        allocator.submit(request(claims + number, chance))
        arrivals.append(seconds(allocator.settle))
    print(f"load {os.getloadavg()[0]:.1f}; {gpus} GPUs, {claims} claims, of which {len(waiting)} wait: {taken:.2f} s")
    print(f"one goes {1e3 * median(departures):.2f} ms, one comes {1e3 * median(arrivals):.2f} ms (medians)")
    print(f"why the last one waits {1e3 * seconds(lambda: allocator.message(waiting[-1].uid)):.1f} ms")


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*(given or (10_000, 30_000)))
