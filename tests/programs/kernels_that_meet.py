"""Kernels on two GPUs write page-locked memory and wait for what the other writes there, as llama.cpp reduces.

Each round the host looks at every word, and changes some. Arguments: kinds of memory, of `allocated`, `registered`,
`managed`, `created`.
"""

import itertools
import sys

import numpy as np
from cu import cu, launch, ok, pinned, start, u32, u64
from mirrors.memories import Created, Registered

MEET = b"""
.version 7.0
.target sm_80
.address_size 64
// words[mine] = value; waits until words[other] is value; words[mine + 1] = 2 * value + words[given]
.visible .entry meet(.param .u64 words, .param .u32 mine, .param .u32 other, .param .u32 given, .param .u32 value)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [words];
    ld.param.u32 %r1, [mine];
    ld.param.u32 %r2, [other];
    ld.param.u32 %r3, [given];
    ld.param.u32 %r4, [value];
    mad.wide.u32 %rd2, %r1, 4, %rd1;
    mad.wide.u32 %rd3, %r2, 4, %rd1;
    mad.wide.u32 %rd4, %r3, 4, %rd1;
    st.volatile.global.u32 [%rd2], %r4;
    membar.sys;
AGAIN:
    ld.volatile.global.u32 %r5, [%rd3];
    setp.ne.u32 %p, %r5, %r4;
    @%p bra AGAIN;
    ld.volatile.global.u32 %r6, [%rd4];
    mad.lo.u32 %r7, %r4, 2, %r6;
    st.global.u32 [%rd2+4], %r7;
    ret;
}
\0"""
WORDS, ROUNDS = 4096, 4
contexts, kept = [start(0), start(1)], []
functions = []
for context in contexts:
    ok(cu.cuCtxSetCurrent(context))
    functions.append(ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(MEET)), b"meet")))
chance = np.random.default_rng(3)
# The second memory has its mirror where the first one has it, if both lie in what devices map at a time.
for kind, first in itertools.product(sys.argv[1:], (0, 1)):
    ok(cu.cuCtxSetCurrent(contexts[first]))
    if kind == "allocated":
        words = pinned(WORDS)
    elif kind == "registered":
        memory = Registered(chance, WORDS)
        kept.append(memory)
        words = memory.words
    elif kind == "managed":
        address = int(ok(cu.cuMemAllocManaged(4 * WORDS, 1)))
        words = np.ctypeslib.as_array((u32 * WORDS).from_address(address))
    else:
        words = Created(chance, WORDS, devices=2).words
    place = memory.on_device() if kind == "registered" else words.ctypes.data
    expected = chance.integers(0, 1 << 20, WORDS, np.uint32)
    words[:] = expected
    for round_ in range(ROUNDS):
        value = 7 * round_ + 1
        for device in (first, 1 - first):
            ok(cu.cuCtxSetCurrent(contexts[device]))
            mine, other, given = 100 + 50 * device, 100 + 50 * (1 - device), 3000 + device
            arguments = [u64(place), u32(mine), u32(other), u32(given), u32(value)]
            launch(functions[device], 1, 1, arguments)
            expected[mine : mine + 2] = value, 2 * value + expected[given]
        for device in (1 - first, first):
            ok(cu.cuCtxSetCurrent(contexts[device]))
            ok(cu.cuCtxSynchronize())
        assert (words == expected).all(), (kind, first, round_, np.flatnonzero(words != expected)[:8])
        words[3000:3002] = expected[3000:3002] = chance.integers(0, 1 << 20, 2, np.uint32)
# Memory that lies between what one device has and what the other one has, in what devices map at a time.
between = [pinned(1024), pinned((2 << 20) // 4), pinned(1024)]
for device, array in ((0, between[0]), (1, between[2]), (1, between[1]), (0, between[1])):
    array[:] = 7
    ok(cu.cuCtxSetCurrent(contexts[device]))
    launch(functions[device], 1, 1, [u64(array.ctypes.data), u32(0), u32(0), u32(9), u32(5)])
    ok(cu.cuCtxSynchronize())
    assert (array[:3] == [5, 17, 7]).all(), array[:3]
# The device that has the mirror is reset; the other one continues with memory of its own.
ok(cu.cuDevicePrimaryCtxReset(ok(cu.cuDeviceGet(first))))
ok(cu.cuCtxSetCurrent(contexts[1 - first]))
again = pinned(WORDS)
again[:] = 5
launch(functions[1 - first], 1, 1, [u64(again.ctypes.data), u32(0), u32(8), u32(9), u32(5)])
ok(cu.cuCtxSynchronize())
assert again[1] == 15 and (again[2:] == 5).all()
print("met")
