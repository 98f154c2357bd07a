"""Streams of two processes of one lease wait for each other by events, without a process that waits. Prints "in order".

With "killed" as argument the exporter is killed before its event is complete; what waits for it continues.
"""

import ctypes
import multiprocessing
import sys

import numpy as np
from cu import code_of, cu, download, kernels, launch, ok, pinned, start, u32, u64
from share_memory import handle_of, opened

COUNT, ROUNDS, LATE = 1000, 20, 3_000_000
SHARED = cu.CUevent_flags.CU_EVENT_INTERPROCESS | cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
INVALID_VALUE, INVALID_HANDLE, NOT_READY = 1, 400, 600


def event_handle(event):
    return ctypes.string_at(ok(cu.cuIpcGetEventHandle(event)).getPtr(), 64)


def opened_event(reserved):
    handle = cu.CUipcEventHandle()
    ctypes.memmove(handle.getPtr(), reserved, 64)
    return ok(cu.cuIpcOpenEventHandle(handle))


class Side:
    """Memory that both processes have, and for each process the event that it records."""

    def __init__(self):
        start()
        self.functions = kernels()
        self.stream = ok(cu.cuStreamCreate(1))
        self.memory = self.records = self.follows = None

    def fill_late(self, value):
        arguments = [u64(int(self.memory)), u32(COUNT), u32(value), u64(LATE)]
        launch(self.functions["late_fill"], 1, 128, arguments, self.stream)
        ok(cu.cuEventRecord(self.records, self.stream))

    def read_after(self, host):
        ok(cu.cuStreamWaitEvent(self.stream, self.follows, 0))
        ok(cu.cuMemcpyDtoHAsync(host, self.memory, COUNT * 4, self.stream))


def export(pipe):
    side = Side()
    side.memory = ok(cu.cuMemAlloc(COUNT * 4))
    assert code_of(cu.cuEventCreate, cu.CUevent_flags.CU_EVENT_INTERPROCESS) == INVALID_VALUE, "it would be timed"
    plain = ok(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    assert code_of(cu.cuIpcGetEventHandle, plain) == INVALID_HANDLE
    side.records, side.follows = (ok(cu.cuEventCreate(SHARED)) for _ in range(2))
    # A record before the export counts, too.
    side.fill_late(1)
    pipe.send([handle_of(side.memory), event_handle(side.records), event_handle(side.follows)])
    host = pinned(COUNT)
    for value in range(2, 2 + ROUNDS, 2):
        assert pipe.recv() == "recorded"
        side.read_after(host)
        side.fill_late(value + 1)
        pipe.send("recorded")
        ok(cu.cuStreamSynchronize(side.stream))
        assert (host == value).all(), (value, host)
    assert pipe.recv() == "end"


def export_and_hang(pipe):
    side = Side()
    side.records = ok(cu.cuEventCreate(SHARED))
    words = ok(cu.cuMemAlloc(8))
    ok(cu.cuMemsetD8(words, 0, 8))
    launch(side.functions["spin"], 1, 1, [u64(int(words)), u64(int(words) + 4)], side.stream)
    ok(cu.cuEventRecord(side.records, side.stream))
    pipe.send(event_handle(side.records))
    pipe.recv()


def connected(target):
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=target, args=(theirs,))
    process.start()
    theirs.close()
    return process, ours


def in_order():
    process, pipe = connected(export)
    side = Side()
    memory, follows, records = pipe.recv()
    side.memory, side.follows, side.records = opened(memory), opened_event(follows), opened_event(records)
    host = pinned(COUNT)
    side.read_after(host)
    ok(cu.cuStreamSynchronize(side.stream))
    assert (host == 1).all(), host
    for value in range(2, 2 + ROUNDS, 2):
        side.fill_late(value)
        pipe.send("recorded")
        assert pipe.recv() == "recorded"
        if value % 4:
            side.read_after(host)
            ok(cu.cuStreamSynchronize(side.stream))
            assert (host == value + 1).all(), (value, host)
        else:
            ok(cu.cuEventSynchronize(side.follows))
            assert (download(side.memory, COUNT) == value + 1).all()
        assert code_of(cu.cuEventQuery, side.follows) == 0
    ok(cu.cuEventDestroy(side.follows))
    ok(cu.cuEventDestroy(side.records))
    assert code_of(cu.cuEventQuery, side.records) == INVALID_HANDLE
    pipe.send("end")
    process.join()
    assert process.exitcode == 0, process.exitcode
    print("in order")


def killed():
    process, pipe = connected(export_and_hang)
    side = Side()
    event = opened_event(pipe.recv())
    assert code_of(cu.cuEventQuery, event) == NOT_READY
    ok(cu.cuStreamWaitEvent(side.stream, event, 0))
    word = ok(cu.cuMemAlloc(4))
    ok(cu.cuMemsetD32Async(word, 5, 1, side.stream))
    assert code_of(cu.cuStreamQuery, side.stream) == NOT_READY
    process.kill()
    ok(cu.cuStreamSynchronize(side.stream))
    assert np.array_equal(download(word, 1), [5])
    assert code_of(cu.cuEventQuery, event) == 0
    print("went on")


if __name__ == "__main__":
    if sys.argv[1:] == ["killed"]:
        killed()
    else:
        in_order()
