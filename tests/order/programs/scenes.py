"""Scenes of a fixed shape among the random commands: each shows a rule of order that random commands meet too seldom.

They use streams, events and memory of their own, so that the model need not know of them. No gate is closed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Protocol

from driver import DISABLE_TIMING, HOST_FUNCTION, NON_BLOCKING, NOT_READY, OK, Driver

#: More than a stream may have in flight: some wait in the worker.
MANY_LAUNCHES = 1200
LONG_OPERATIONS = 60
#: Freed memory of so many pieces is asked for at once.
MANY_PIECES = 32


class Host(Protocol):
    function: HOST_FUNCTION

    def leave(self, action: Callable[[], object]) -> int: ...


class Scenes:
    """`expect` is told of each command: what it was, what came of it, and CUDA's answer."""

    def __init__(self, cuda: Driver, step: int, host: Host, expect: Callable[[str, object, object], None]) -> None:
        self.cuda, self.step, self.host, self.expect = cuda, step, host, expect

    def call(self, name: str, *arguments: object) -> None:
        self.expect(name, self.cuda.call(name, *arguments), OK)

    def streams(self, count: int) -> list[int]:
        return [self.cuda.made("cuStreamCreate", NON_BLOCKING) for _ in range(count)]

    def leave(self, streams: list[int]) -> None:
        for stream in streams:
            self.call("cuStreamSynchronize", stream)
            self.call("cuStreamDestroy_v2", stream)

    def steps(self, stream: int, address: int, count: int) -> None:
        for _ in range(count):
            self.expect("launch", self.cuda.launch(self.step, stream, (address, 3, 5)), OK)

    def word(self, address: int) -> int:
        now = ctypes.c_uint64()
        self.call("cuMemcpyDtoH_v2", ctypes.byref(now), address, 8)
        return now.value

    def late_record(self) -> None:
        """An event is recorded in a stream that stands still, then in one that is busy: the second record counts."""
        still, busy, third = streams = self.streams(3)
        event = self.cuda.made("cuEventCreate", DISABLE_TIMING)
        memory, gate = self.cuda.made("cuMemAlloc_v2", 8), threading.Event()
        self.call("cuLaunchHostFunc", still, self.host.function, self.host.leave(gate.wait))
        self.call("cuEventRecord", event, still)
        self.steps(busy, memory, 300)
        self.call("cuEventRecord", event, busy)
        gate.set()
        self.call("cuStreamSynchronize", still)
        self.call("cuStreamWaitEvent", third, event, 0)
        self.call("cuMemsetD32Async", memory, 7, 2, third)
        self.leave(streams)
        self.expect("what the third stream wrote", self.word(memory), 7 << 32 | 7)
        self.call("cuEventDestroy_v2", event)
        self.call("cuMemFree_v2", memory)

    def new_memory(self) -> None:
        """The end of new memory is written at once: zeroing it must not come afterwards."""
        words = 6 << 20
        streams, memory = self.streams(1), self.cuda.made("cuMemAlloc_v2", 8 * words)
        last = memory + 8 * (words - 1)
        self.call("cuMemsetD32Async", last, 7, 2, streams[0])
        self.leave(streams)
        self.expect("the end of new memory", self.word(last), 7 << 32 | 7)
        self.call("cuMemFree_v2", memory)

    def reused_memory(self) -> None:
        """Memory is freed while kernels are yet to write to it: who gets it next finds nothing of them."""
        busy, other = streams = self.streams(2)
        size, long = 4 << 20, self.cuda.made("cuMemAlloc_v2", 4 << 20)
        freed = [self.cuda.made("cuMemAlloc_v2", 8) for _ in range(MANY_PIECES)]
        self.steps(busy, freed[0], MANY_LAUNCHES)
        # These wait in the worker, and take their time when they run.
        for _ in range(LONG_OPERATIONS):
            self.call("cuMemsetD32Async", long, 3, size // 4, busy)
        for address in freed:
            self.steps(busy, address, 1)
        for address in freed:
            self.call("cuMemFree_v2", address)
        following = [self.cuda.made("cuMemAlloc_v2", 8)]
        while following[-1] not in freed and self.cuda.call("cuStreamQuery", busy) == NOT_READY:
            following.append(self.cuda.made("cuMemAlloc_v2", 8))
        self.call("cuMemsetD32Async", following[-1], 7, 2, other)
        self.leave(streams)
        self.expect("memory that was used before", self.word(following[-1]), 7 << 32 | 7)
        for address in [*following, long]:
            self.call("cuMemFree_v2", address)
