"""Lets a kernel exchange 64 random words in 8 of many page-locked buffers, step after step, and compares all words of all
buffers after each wait. Arguments: buffers, their words, steps, a seed, and the kind of wait, or `each` for all in turn."""

import ctypes
import sys

import numpy as np
from cu import cu, launch, ok, pinned, start, u32, u64

BUFFERS, WORDS, STEPS, SEED = (int(argument) for argument in sys.argv[1:5])
CHANGED, PLACES, NOT_READY = 8, 64, 600
# out[i] = *at[i]; *at[i] = value[i]
EXCHANGE = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry exchange(.param .u64 at, .param .u64 value, .param .u64 out, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [at];
    ld.param.u64 %rd2, [value];
    ld.param.u64 %rd3, [out];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p, %r2, %r1;
    @%p ret;
    mul.wide.u32 %rd4, %r2, 8;
    add.s64 %rd5, %rd1, %rd4;
    ld.global.u64 %rd6, [%rd5];
    mul.wide.u32 %rd4, %r2, 4;
    add.s64 %rd7, %rd2, %rd4;
    ld.global.u32 %r3, [%rd7];
    add.s64 %rd8, %rd3, %rd4;
    ld.global.u32 %r4, [%rd6];
    st.global.u32 [%rd8], %r4;
    st.global.u32 [%rd6], %r3;
    ret;
}
\0"""

start()
chance = np.random.default_rng(SEED)
exchange = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(EXCHANGE)), b"exchange"))
stream = ok(cu.cuStreamCreate(1))
event = ok(cu.cuEventCreate(2))
word = ok(cu.cuMemAlloc(4))
count = CHANGED * PLACES
buffers = [pinned(WORDS) for _ in range(BUFFERS)]
places, values, out = pinned(count, np.uint64), pinned(count), pinned(count)
devices = [int(ok(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0))) for array in (*buffers, places, values, out)]
expected = [chance.integers(0, 1 << 32, WORDS, np.uint32) for _ in range(BUFFERS)]
for array, given in zip(buffers, expected, strict=True):
    array[:] = given


def until_ready(ask, what):
    ok(cu.cuEventRecord(event, stream))
    while int(ask(what)[0]) == NOT_READY:
        pass


def after_a_function():
    called = ctypes.c_int(0)
    seen = []

    def function(_):
        seen.append([array.copy() for array in buffers])
        called.value = 1

    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
    assert driver.cuLaunchHostFunc(ctypes.c_void_p(int(stream)), call, None) == 0
    ok(cu.cuStreamSynchronize(stream))
    assert all((a == b).all() for a, b in zip(seen[0], expected, strict=True))


def after_a_record():
    ok(cu.cuEventRecord(event, stream))
    ok(cu.cuEventSynchronize(event))


driver = ctypes.CDLL("libcuda.so.1")
WAITS = {
    "stream": lambda: ok(cu.cuStreamSynchronize(stream)),
    "context": lambda: ok(cu.cuCtxSynchronize()),
    "event": after_a_record,
    "event_query": lambda: until_ready(cu.cuEventQuery, event),
    "stream_query": lambda: until_ready(cu.cuStreamQuery, stream),
    "copy": lambda: (after_a_record(), ok(cu.cuMemcpyDtoH(np.zeros(1, np.uint32), word, 4))),
    "function": after_a_function,
}
kinds = list(WAITS) if sys.argv[5] == "each" else [sys.argv[5]]
for step in range(STEPS):
    # The host writes some words of some buffers itself.
    for index in chance.choice(BUFFERS, 2, replace=False):
        at = chance.choice(WORDS, 5, replace=False)
        buffers[index][at] = expected[index][at] = chance.integers(0, 1 << 32, 5, np.uint32)
    chosen = chance.choice(BUFFERS, CHANGED, replace=False)
    ats = [chance.choice(WORDS, PLACES, replace=False) for _ in chosen]
    places[:] = np.concatenate([devices[i] + 4 * at.astype(np.uint64) for i, at in zip(chosen, ats, strict=True)])
    values[:] = chance.integers(0, 1 << 32, count, np.uint32)
    before = np.concatenate([expected[i][at] for i, at in zip(chosen, ats, strict=True)])
    arguments = [u64(device) for device in devices[-3:]]
    launch(exchange, 1, count, [*arguments, u32(count)], stream)
    for number, (index, at) in enumerate(zip(chosen, ats, strict=True)):
        expected[index][at] = values[number * PLACES : (number + 1) * PLACES]
    kind = kinds[step % len(kinds)]
    WAITS[kind]()
    assert (out == before).all(), (step, kind, "the kernel saw other words")
    for index, (array, wanted) in enumerate(zip(buffers, expected, strict=True)):
        assert (array == wanted).all(), (step, kind, index, np.flatnonzero(array != wanted)[:8])
print("ok")
