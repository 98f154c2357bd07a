"""Lets a kernel exchange 64 random words in 8 of many page-locked buffers, step after step, and compares all words of
all buffers after each wait. Arguments: buffers, their words, steps, a seed, the kind of wait or `each` for all in turn,
and how many threads do so at the same time (1), each with buffers and a stream of its own."""

import ctypes
import os
import socket
import sys
import threading

import numpy as np
from cu import cu, launch, ok, pinned, start, u32, u64
from mirrors.kernels import EXCHANGE_AND_BUMP

BUFFERS, WORDS, STEPS, SEED = (int(argument) for argument in sys.argv[1:5])
KIND, THREADS = sys.argv[5], int(sys.argv[6]) if len(sys.argv) > 6 else 1
CHANGED, PLACES, NOT_READY = 8, 64, 600
COUNT = CHANGED * PLACES

context = start()
exchange = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(EXCHANGE_AND_BUMP)), b"exchange"))
driver = ctypes.CDLL("libcuda.so.1")
word = ok(cu.cuMemAlloc(4))


class Exchanging:
    """One thread's buffers, and what they have to hold."""

    def __init__(self, number):
        self.chance = np.random.default_rng([SEED, number])
        self.stream, self.event = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(2))
        self.buffers = [pinned(WORDS) for _ in range(BUFFERS)]
        self.places, self.values, self.out = pinned(COUNT, np.uint64), pinned(COUNT), pinned(COUNT)
        self.used = (*self.buffers, self.places, self.values, self.out)
        self.devices = [int(ok(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0))) for array in self.used]
        self.expected = [self.words(WORDS) for _ in range(BUFFERS)]
        for array, given in zip(self.buffers, self.expected, strict=True):
            array[:] = given
        (here, there), (end, other) = os.pipe(), socket.socketpair()
        self.ends = end, other
        self.ways = (
            (lambda given: os.write(there, given), lambda into: os.readv(here, [into])),
            (lambda given: other.send(given), lambda into: end.recv_into(into)),
        )

    def words(self, count):
        return self.chance.integers(0, 1 << 32, count, np.uint32)

    def step(self, kind):
        # The host writes some words of some buffers itself.
        for index in self.chance.choice(BUFFERS, 2, replace=False):
            at = self.chance.choice(WORDS, 5, replace=False)
            self.buffers[index][at] = self.expected[index][at] = self.words(5)
        # And the system for it, from a file and from a socket.
        for give, take in self.ways:
            index, at = self.chance.integers(BUFFERS), self.chance.integers(WORDS - 8)
            given = self.words(8)
            give(given)
            take(memoryview(self.buffers[index][at : at + 8]))
            self.expected[index][at : at + 8] = given
        chosen = self.chance.choice(BUFFERS, CHANGED, replace=False)
        ats = [self.chance.choice(WORDS, PLACES, replace=False) for _ in chosen]
        pairs = list(zip(chosen, ats, strict=True))
        self.places[:] = np.concatenate([self.devices[index] + 4 * at.astype(np.uint64) for index, at in pairs])
        self.values[:] = self.words(COUNT)
        before = np.concatenate([self.expected[index][at] for index, at in pairs])
        launch(exchange, 1, COUNT, [*(u64(device) for device in self.devices[-3:]), u32(COUNT)], self.stream)
        for number, (index, at) in enumerate(pairs):
            self.expected[index][at] = self.values[number * PLACES : (number + 1) * PLACES]
        # While the kernel may run the host writes words that are not the kernel's.
        used = dict(pairs)
        for index in self.chance.choice(BUFFERS, 2, replace=False):
            at = np.setdiff1d(self.chance.choice(WORDS, 5, replace=False), used.get(index, []))
            self.buffers[index][at] = self.expected[index][at] = self.words(len(at))
        getattr(self, kind)()
        assert (self.out == before).all(), "the kernel saw other words"
        self.check(self.buffers)

    def end(self):
        for array in self.used:
            ok(cu.cuMemFreeHost(array.ctypes.data))

    def check(self, found):
        for index, (array, wanted) in enumerate(zip(found, self.expected, strict=True)):
            assert (array == wanted).all(), (index, np.flatnonzero(array != wanted)[:8])

    def until_ready(self, ask, what):
        ok(cu.cuEventRecord(self.event, self.stream))
        while int(ask(what)[0]) == NOT_READY:
            pass

    def in_stream(self):
        ok(cu.cuStreamSynchronize(self.stream))

    def in_context(self):
        ok(cu.cuCtxSynchronize())

    def by_event(self):
        ok(cu.cuEventRecord(self.event, self.stream))
        ok(cu.cuEventSynchronize(self.event))

    def by_event_query(self):
        self.until_ready(cu.cuEventQuery, self.event)

    def by_stream_query(self):
        self.until_ready(cu.cuStreamQuery, self.stream)

    def by_copy(self):
        ok(cu.cuEventRecord(self.event, self.stream))
        ok(cu.cuStreamWaitEvent(0, self.event, 0))
        ok(cu.cuMemcpyDtoH(np.zeros(1, np.uint32), word, 4))

    def by_copy_to_the_device(self):
        ok(cu.cuEventRecord(self.event, self.stream))
        ok(cu.cuStreamWaitEvent(0, self.event, 0))
        ok(cu.cuMemcpyHtoD(word, np.zeros(1, np.uint32), 4))

    def by_function(self):
        seen = []
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.extend(array.copy() for array in self.buffers))
        assert driver.cuLaunchHostFunc(ctypes.c_void_p(int(self.stream)), call, None) == 0
        ok(cu.cuStreamSynchronize(self.stream))
        self.check(seen)


KINDS = [name for name in vars(Exchanging) if name.startswith(("in_", "by_"))] if KIND == "each" else [KIND]
failed = []


def exchange_often(number):
    ok(cu.cuCtxSetCurrent(context))
    exchanging, kind, step = Exchanging(number), "", 0
    try:
        for step in range(STEPS):
            kind = KINDS[(step + number) % len(KINDS)]
            exchanging.step(kind)
        kind = "the end"
        exchanging.end()
    except Exception as error:
        failed.append((number, step, kind, error))


threads = [threading.Thread(target=exchange_often, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
print("ok")
