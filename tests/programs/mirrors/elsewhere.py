"""Waits for what itself waited for the program's stream: a stream of a second device, an event of a second process."""

import multiprocessing
import threading

from cu import cu, ok, start
from share_events import SHARED, event_handle, opened_event


def relay(pipe):
    """Records its own events behind another process's, as often as it is told."""
    start()
    stream, done = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(SHARED))
    pipe.send(event_handle(done))
    event = opened_event(pipe.recv())
    while pipe.recv():
        ok(cu.cuStreamWaitEvent(stream, event, 0))
        ok(cu.cuEventRecord(done, stream))
        pipe.send("recorded")


class Elsewhere:
    """The second device and the second process, which all threads of the program use, one after the other."""

    def __init__(self, context):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=relay, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.second = start(1)
        self.far, self.recorded = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(2))
        ok(cu.cuCtxSetCurrent(context))
        self.event, self.done = ok(cu.cuEventCreate(SHARED)), opened_event(self.pipe.recv())
        self.pipe.send(event_handle(self.event))
        self.one_at_a_time = threading.Lock()

    def wait_by_device(self, event, how):
        """`event`: of the first device. `how` is a number that says by what of the second device."""
        with self.one_at_a_time:
            ok(cu.cuStreamWaitEvent(self.far, event, 0))
            ok(cu.cuCtxPushCurrent(self.second))
            ok(cu.cuEventRecord(self.recorded, self.far))
            waits = (
                (cu.cuStreamSynchronize, self.far),
                (cu.cuEventSynchronize, self.recorded),
                (cu.cuCtxSynchronize,),
            )
            wait, *what = waits[how % 3]
            ok(wait(*what))
            ok(cu.cuCtxPopCurrent())

    def wait_by_process(self, stream, how):
        """By the second process's event, or by a stream that waits for it."""
        with self.one_at_a_time:
            ok(cu.cuEventRecord(self.event, stream))
            self.pipe.send(True)
            assert self.pipe.recv() == "recorded"
            if how % 2:
                ok(cu.cuEventSynchronize(self.done))
            else:
                ok(cu.cuStreamWaitEvent(stream, self.done, 0))
                ok(cu.cuStreamSynchronize(stream))

    def end(self):
        self.pipe.send(False)
        self.process.join()
