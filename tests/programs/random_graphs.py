"""Random work on three streams, done by calls and by graphs, against NumPy: `random_graphs.py FIRST COUNT`.

Each program runs in four ways: by calls, by a captured graph, by a graph that was updated from another capture, and by
two graphs inside a graph. All must leave what the model in NumPy says.
"""

import ctypes
import json
import random
import sys

import numpy as np
from cu import cu, download, launch, ok, pinned, start, u32, u64, upload

WORDS, BUFFERS, STREAMS, STEPS, LAUNCHES = 64, 4, 3, 60, 3

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry mix(.param .u64 to, .param .u64 from, .param .u32 a, .param .u32 b)
{
    .reg .b64 %d<4>;
    .reg .b32 %r<7>;
    ld.param.u64 %d1, [to];
    ld.param.u64 %d2, [from];
    ld.param.u32 %r1, [a];
    ld.param.u32 %r2, [b];
    mov.u32 %r3, %tid.x;
    mul.wide.u32 %d3, %r3, 4;
    add.s64 %d1, %d1, %d3;
    add.s64 %d2, %d2, %d3;
    ld.global.u32 %r4, [%d1];
    ld.global.u32 %r5, [%d2];
    mad.lo.u32 %r4, %r4, %r1, %r2;
    add.u32 %r4, %r4, %r5;
    st.global.u32 [%d1], %r4;
    ret;
}
\0"""


def program(seed):
    """Steps (what, stream, touched buffers, numbers); places below BUFFERS are the device's, the others the host's."""
    rng = random.Random(seed)
    steps = []
    for _ in range(STEPS):
        what = rng.choices(["mix", "fill", "copy", "in", "out", "host", "temporary"], [6, 2, 3, 2, 2, 1, 2])[0]
        one, other = rng.sample(range(BUFFERS), 2)
        host = BUFFERS + rng.randrange(2)
        places = {"fill": (one,), "temporary": (one,), "in": (one, host), "out": (host, one), "host": (host,)}
        numbers = (rng.randrange(1, 1 << 16) | 1, rng.randrange(1 << 16))
        steps.append((what, rng.randrange(STREAMS), places.get(what, (one, other)), numbers))
    return steps


def model(steps, state):
    """Returns the content of the six arrays after the steps."""
    for what, _, places, (a, b) in steps:
        to = state[places[0]]
        if what == "mix":
            to[:] = to * np.uint32(a) + np.uint32(b) + state[places[1]]
        elif what == "temporary":
            to[:] = to * np.uint32(a) + np.uint32(b) + np.uint32(b)
        elif what == "fill":
            to[:] = b
        elif what == "host":
            to[:] = to * np.uint32(a) + np.uint32(b)
        else:
            to[:] = state[places[1]]


class Machine:
    def __init__(self):
        start()
        self.context = ok(cu.cuCtxGetCurrent())
        self.mix = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(PTX)), b"mix"))
        self.streams = [ok(cu.cuStreamCreate(1)) for _ in range(STREAMS)]
        self.device = [upload(np.zeros(WORDS, np.uint32)) for _ in range(BUFFERS)]
        self.host = [pinned(WORDS) for _ in range(2)]
        self.kept = []

    def set(self, state):
        for pointer, array in zip(self.device, state[:BUFFERS], strict=True):
            ok(cu.cuMemcpyHtoD(pointer, array, array.nbytes))
        for ours, array in zip(self.host, state[BUFFERS:], strict=True):
            ours[:] = array

    def get(self):
        return [download(pointer, WORDS) for pointer in self.device] + [array.copy() for array in self.host]

    def join(self, first, then):
        event = ok(cu.cuEventCreate(2))
        ok(cu.cuEventRecord(event, self.streams[first]))
        ok(cu.cuStreamWaitEvent(self.streams[then], event, 0))
        ok(cu.cuEventDestroy(event))

    def called(self, array, a, b):
        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def change(_):
            array[:] = array * np.uint32(a) + np.uint32(b)

        self.kept.append(change)
        return ctypes.cast(change, ctypes.c_void_p).value

    def do(self, steps):
        """Works from the first stream to the others and back; a stream waits before it uses another one's data."""
        for stream in range(1, STREAMS):
            self.join(0, stream)
        touched = {}
        for what, number, places, (a, b) in steps:
            for place in places:
                if touched.get(place, number) != number:
                    self.join(touched[place], number)
                touched[place] = number
            stream, size = self.streams[number], WORDS * 4
            at = [self.device[p] if p < BUFFERS else self.host[p - BUFFERS] for p in places]
            if what == "mix":
                launch(self.mix, 1, WORDS, [u64(int(at[0])), u64(int(at[1])), u32(a), u32(b)], stream)
            elif what == "temporary":
                memory = ok(cu.cuMemAllocAsync(size, stream))
                ok(cu.cuMemsetD32Async(memory, b, WORDS, stream))
                launch(self.mix, 1, WORDS, [u64(int(at[0])), u64(int(memory)), u32(a), u32(b)], stream)
                ok(cu.cuMemFreeAsync(memory, stream))
            elif what == "fill":
                ok(cu.cuMemsetD32Async(at[0], b, WORDS, stream))
            elif what == "copy":
                ok(cu.cuMemcpyDtoDAsync(at[0], at[1], size, stream))
            elif what == "in":
                ok(cu.cuMemcpyHtoDAsync(at[0], at[1], size, stream))
            elif what == "out":
                ok(cu.cuMemcpyDtoHAsync(at[0], at[1], size, stream))
            else:
                ok(cu.cuLaunchHostFunc(stream, cu.CUhostFn(self.called(at[0], a, b)), 0))
        for stream in range(1, STREAMS):
            self.join(stream, 0)

    def capture(self, steps):
        ok(cu.cuStreamBeginCapture(self.streams[0], cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        self.do(steps)
        return ok(cu.cuStreamEndCapture(self.streams[0]))

    def launch(self, executable):
        for _ in range(LAUNCHES):
            ok(cu.cuGraphLaunch(executable, self.streams[0]))
        ok(cu.cuStreamSynchronize(self.streams[0]))
        ok(cu.cuGraphExecDestroy(executable))


def by_calls(machine, steps):
    for _ in range(LAUNCHES):
        machine.do(steps)
    ok(cu.cuCtxSynchronize())


def captured(machine, steps):
    graph = machine.capture(steps)
    machine.launch(ok(cu.cuGraphInstantiate(graph, 0)))
    ok(cu.cuGraphDestroy(graph))


def updated(machine, steps):
    """Runs without steps that allocate: memory of nodes cannot change hands."""
    others = [(what, stream, places, (a + 2, b ^ 5)) for what, stream, places, (a, b) in steps]
    first, graph = machine.capture(others), machine.capture(steps)
    executable = ok(cu.cuGraphInstantiate(first, 0))
    ok(cu.cuGraphExecUpdate(executable, graph))
    machine.launch(executable)
    ok(cu.cuGraphDestroy(first))
    ok(cu.cuGraphDestroy(graph))


def nested(machine, steps):
    """Runs half of it by a graph inside the graph. Memory nodes may not be inside."""
    inner, whole = machine.capture(steps[: len(steps) // 2]), ok(cu.cuGraphCreate(0))
    outer = machine.capture(steps[len(steps) // 2 :])
    first = ok(cu.cuGraphAddChildGraphNode(whole, None, 0, inner))
    ok(cu.cuGraphAddChildGraphNode(whole, [first], 1, outer))
    machine.launch(ok(cu.cuGraphInstantiate(whole, 0)))
    for graph in (inner, outer, whole):
        ok(cu.cuGraphDestroy(graph))


def main():
    machine = Machine()
    for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        steps, rng = program(seed), np.random.default_rng(seed)
        before = [rng.integers(0, 1 << 32, WORDS, np.uint32) for _ in range(BUFFERS + 2)]
        without = [step for step in steps if step[0] != "temporary"]
        wrong = None
        for way, done in ((by_calls, steps), (captured, steps), (updated, without), (nested, without)):
            machine.set(before)
            expected = [array.copy() for array in before]
            for _ in range(LAUNCHES):
                model(done, expected)
            way(machine, done)
            left = machine.get()
            if not all(np.array_equal(a, b) for a, b in zip(left, expected, strict=True)):
                wrong = wrong or way.__name__
        print(json.dumps({"seed": seed, "steps": len(steps), "differs": wrong}), flush=True)


main()
