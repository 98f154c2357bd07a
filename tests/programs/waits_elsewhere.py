"""A kernel writes page-locked memory, and the host waits for it by something else that waited: with `device` by a
stream of a second device, with `process` by an event of a second process. Prints "seen" when all words were, after a
wait of each kind. The second argument says how often (3)."""

import ctypes
import multiprocessing
import sys

import numpy as np
from cu import cu, kernels, launch, ok, pinned, start, u32, u64
from mirrors.elsewhere import relay
from share_events import SHARED, event_handle, opened_event

COUNT, LATE, NOT_READY, AT_LEAST = 5000, 2_000_000, 600, 0
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 3


class Waiter:
    """Fills memory late by a stream of the first device."""

    def __init__(self, context):
        self.context, self.fill = context, kernels()["late_fill"]
        self.stream, self.event = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(SHARED))
        self.words, self.value = pinned(COUNT), 0
        self.words[:] = 0
        self.driver = ctypes.CDLL("libcuda.so.1")

    def write(self):
        ok(cu.cuCtxSetCurrent(self.context))
        self.value += 1
        # What the host writes before is there, too: one word more than the kernel fills.
        self.words[-1] = 1000 + self.value
        arguments = [u64(self.words.ctypes.data), u32(COUNT - 1), u32(self.value), u64(LATE)]
        launch(self.fill, 1, 256, arguments, self.stream)
        ok(cu.cuEventRecord(self.event, self.stream))

    def right(self, words):
        return (words[:-1] == self.value).all() and words[-1] == 1000 + self.value

    def check(self, how):
        assert self.right(self.words), (how, self.value, np.unique(self.words))

    def until_ready(self, ask, what):
        while (code := int(ask(what)[0])) == NOT_READY:
            pass
        assert code == 0, code


class ByDevice(Waiter):
    """All that is waited for is of the second device."""

    def __init__(self):
        super().__init__(start())
        self.second = start(1)
        self.far, self.done = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(2))
        self.flag, self.other = pinned(1), int(ok(cu.cuMemAlloc(4)))
        self.flag[:] = 0
        self.flag_device = int(ok(cu.cuMemHostGetDevicePointer(self.flag.ctypes.data, 0)))

    def follow(self, stream):
        ok(cu.cuCtxSetCurrent(self.second))
        ok(cu.cuStreamWaitEvent(stream, self.event, 0))

    def in_stream(self):
        self.follow(self.far)
        ok(cu.cuStreamSynchronize(self.far))

    def in_context(self):
        self.follow(self.far)
        ok(cu.cuCtxSynchronize())

    def by_stream_query(self):
        self.follow(self.far)
        self.until_ready(cu.cuStreamQuery, self.far)

    def recorded(self):
        self.follow(self.far)
        ok(cu.cuEventRecord(self.done, self.far))
        return self.done

    def by_event(self):
        ok(cu.cuEventSynchronize(self.recorded()))

    def by_event_query(self):
        self.until_ready(cu.cuEventQuery, self.recorded())

    def by_copy_to_the_host(self):
        self.follow(0)
        ok(cu.cuMemcpyDtoH(np.zeros(1, np.uint32), self.other, 4))

    def by_copy_to_the_device(self):
        self.follow(0)
        ok(cu.cuMemcpyHtoD(self.other, np.zeros(1, np.uint32), 4))

    def by_fill(self):
        self.follow(0)
        ok(cu.cuMemsetD32(self.flag_device, int(self.flag[0]), 1))

    def called(self, kind, give):
        seen = []
        call = kind(lambda *_: seen.append(self.words.copy()))
        assert give(call) == 0
        ok(cu.cuStreamSynchronize(self.far))
        assert self.right(seen[0]), np.unique(seen[0])

    def by_host_function(self):
        self.follow(self.far)
        far = ctypes.c_void_p(int(self.far))
        self.called(ctypes.CFUNCTYPE(None, ctypes.c_void_p), lambda call: self.driver.cuLaunchHostFunc(far, call, None))

    def by_callback(self):
        self.follow(self.far)
        far, kind = (
            ctypes.c_void_p(int(self.far)),
            ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p),
        )
        self.called(kind, lambda call: self.driver.cuStreamAddCallback(far, call, None, 0))

    def by_written_word(self):
        self.follow(self.far)
        value = int(self.flag[0]) + 1
        ok(cu.cuStreamWriteValue32(self.far, self.flag_device, value, 0))
        while self.flag[0] != value:
            pass

    def end(self):
        pass


class ByProcess(Waiter):
    """Waits for an event of the second process, whose stream waited for the program's own."""

    def __init__(self):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=relay, args=(theirs,))
        self.process.start()
        super().__init__(start())
        self.done = opened_event(self.pipe.recv())
        self.pipe.send(event_handle(self.event))
        self.far = ok(cu.cuStreamCreate(1))

    def recorded(self):
        self.pipe.send(True)
        assert self.pipe.recv() == "recorded"
        return self.done

    def by_event(self):
        ok(cu.cuEventSynchronize(self.recorded()))

    def by_event_query(self):
        self.until_ready(cu.cuEventQuery, self.recorded())

    def in_stream(self):
        ok(cu.cuStreamWaitEvent(self.far, self.recorded(), 0))
        ok(cu.cuStreamSynchronize(self.far))

    def by_stream_query(self):
        ok(cu.cuStreamWaitEvent(self.far, self.recorded(), 0))
        self.until_ready(cu.cuStreamQuery, self.far)

    def in_context(self):
        ok(cu.cuStreamWaitEvent(self.far, self.recorded(), 0))
        ok(cu.cuCtxSynchronize())

    def end(self):
        self.pipe.send(False)
        self.process.join()
        assert self.process.exitcode == 0


def main():
    waiter = {"device": ByDevice, "process": ByProcess}[sys.argv[1]]()
    ways = [name for name in dir(waiter) if name.startswith(("in_", "by_"))]
    for _ in range(ROUNDS):
        for how in ways:
            waiter.write()
            getattr(waiter, how)()
            waiter.check(how)
    waiter.end()
    print("seen")


if __name__ == "__main__":
    main()
