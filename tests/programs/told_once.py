"""Asserts what questions and waits answer after a launch that is refused, whose code the call alone tells, and after a
kernel that fails, which all tell from then on; for each kind of stream, with each kind of question or wait first. With
`late` as argument the driver may tell of the failure only when something waits. Prints "ok"."""

import os
import sys

from cu import code_of, cu, ok, start

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry nothing() { ret; }
.visible .entry end_badly() { trap; ret; }\0"""
NOT_READY, TOO_MANY, INVALID_VALUE, LAUNCH_FAILED = 600, 4096, 1, 719
IS_LATE = sys.argv[1:] == ["late"]
STREAMS = {"legacy": lambda: 0, "per_thread": lambda: 2}
STREAMS |= {f"created_{flags}": lambda flags=flags: ok(cu.cuStreamCreate(flags)) for flags in (0, 1)}
FIRST = "query", "event_query", "wait", "event_wait", "context_wait", "copy"


def settled(ask, what):
    while (code := code_of(ask, what)) == NOT_READY:
        pass
    return code


def codes(function, threads, stream, first):
    """Returns the codes of a launch, of all ways in turn, and of a wait for an event that was never recorded."""
    (event, never_recorded), memory = (ok(cu.cuEventCreate(2)) for _ in range(2)), ok(cu.cuMemAlloc(4))
    into = bytearray(4)
    launched = code_of(cu.cuLaunchKernel, function, 1, 1, 1, threads, 1, 1, 0, stream, 0, 0)
    # Of a stream whose kernel has failed already this may fail as well.
    code_of(cu.cuEventRecord, event, stream)
    ways = {
        "query": lambda: settled(cu.cuStreamQuery, stream),
        "event_query": lambda: settled(cu.cuEventQuery, event),
        "wait": lambda: code_of(cu.cuStreamSynchronize, stream),
        "event_wait": lambda: code_of(cu.cuEventSynchronize, event),
        "context_wait": lambda: code_of(cu.cuCtxSynchronize),
        "copy": lambda: code_of(cu.cuMemcpyDtoH, into, memory, 4),
    }
    at = FIRST.index(first)
    answers = [ways[way]() for way in (*FIRST[at:], *FIRST[:at])]
    return [launched, *answers, code_of(cu.cuEventSynchronize, never_recorded)]


def loaded():
    start()
    module = ok(cu.cuModuleLoadData(PTX))
    return [ok(cu.cuModuleGetFunction(module, name)) for name in (b"nothing", b"end_badly")]


def in_a_child(work):
    """A failed kernel breaks its process."""
    if (child := os.fork()) == 0:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def refused():
    function, _ = loaded()
    for kind, make in STREAMS.items():
        for first in FIRST:
            found = codes(function, TOO_MANY, make(), first)
            assert found == [INVALID_VALUE] + [0] * (len(FIRST) + 1), (kind, first, found)


def failed(kind, first):
    _, function = loaded()
    found = codes(function, 1, STREAMS[kind](), first)
    questions = max(0, FIRST.index("wait") - FIRST.index(first)) if IS_LATE else 0
    told = found[1 + questions :]
    assert found[0] == 0 and told == [LAUNCH_FAILED] * len(told), (kind, first, found)


in_a_child(refused)
for kind in STREAMS:
    for first in FIRST:
        # A copy does not wait for a stream of that kind.
        if (kind, first) != ("created_1", "copy"):
            in_a_child(lambda kind=kind, first=first: failed(kind, first))
print("ok")
