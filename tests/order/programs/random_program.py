"""Random programs against the model of CUDA's order: `random_program.py FIRST COUNT [FEWEST_COMMANDS]`.

Prints a line of JSON for each program: its seed, how many commands it had, and where a code or a byte was not what
CUDA documents.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from driver import (
    AT_LEAST,
    DEVICE_MAP,
    DISABLE_TIMING,
    HERE,
    HOST_FUNCTION,
    INVALID_HANDLE,
    INVALID_VALUE,
    MALLOC_HEAP,
    MAX_DYNAMIC_SHARED,
    NON_BLOCKING,
    NOT_READY,
    OK,
    PRINTF_FIFO,
    STACK_SIZE,
    Driver,
    pointer_at,
)
from model import Event, Order, Place, Record, Stream
from scenes import Scenes

MASK = (1 << 64) - 1
CELLS, SLOTS = 12, 6
#: A stream takes about 1,024 operations before a caller blocks; a caller that blocks behind a gate would wait forever.
MOST_BEHIND_A_GATE = 300
LAUNCHES_IN_FLIGHT = 900
#: Words of mirrored memory that the program changes at once, each apart from the others.
SCATTERED = 1500
OPT_IN_SHARED = 97


class DiffersError(Exception):
    pass


@dataclass(eq=False)
class Function:
    handle: int
    #: Bytes of dynamic shared memory that a launch may ask for.
    dynamic_shared: int = 48 << 10


@dataclass(eq=False)
class Module:
    handle: int
    tick: int
    sized: Function
    counter: Place = field(default_factory=Place)


class HostFunctions:
    """Host functions for streams: each call runs the action that was left under its number."""

    def __init__(self) -> None:
        self._left: dict[int, Callable[[], object]] = {}
        self._next = 1
        self.function = HOST_FUNCTION(self._run)

    def leave(self, action: Callable[[], object]) -> int:
        self._next += 1
        self._left[self._next] = action
        return self._next

    def _run(self, number: int) -> None:
        self._left.pop(number)()


class Program:
    """One program, in a context of its own."""

    def __init__(self, cuda: Driver, seed: int, host_functions: HostFunctions, foreign: tuple[int, int]) -> None:
        self.cuda, self.random, self.host = cuda, random.Random(seed), host_functions
        self.foreign_stream, self.foreign_event = foreign
        self.commands = 0
        self.context = cuda.made("cuCtxCreate_v2", 0, 0)
        self.most_shared = cuda.made("cuDeviceGetAttribute", OPT_IN_SHARED, 0)
        self.order = Order(legacy_handle=0)
        self.main = self.load()
        self.modules = [self.main]
        self.step = self.function(self.main.handle, "step")
        self.fold = self.function(self.main.handle, "fold")
        self.grab = self.function(cuda.made("cuModuleLoadData", (HERE / "grab.ptx").read_bytes()), "grab")
        self.grabbed = False
        self.limits: dict[int, int] = {}
        self.memory = cuda.made("cuMemAlloc_v2", 8 * CELLS)
        self.cells = [Place() for _ in range(CELLS)]
        cuda.ok("cuMemsetD32_v2", self.memory, 0, 2 * CELLS)
        self.pinned = cuda.made("cuMemHostAlloc", 8 * SLOTS, 0)
        self.slots = [Place() for _ in range(SLOTS)]
        ctypes.memset(self.pinned, 0, 8 * SLOTS)
        self.events: list[Event] = []
        self.gates: dict[int, Callable[[], object]] = {}
        self.opener = cuda.made("cuStreamCreate", NON_BLOCKING)
        self.mapped = cuda.made("cuMemHostAlloc", 8 * (1 + SCATTERED), DEVICE_MAP)
        ctypes.memset(self.mapped, 0, 8 * (1 + SCATTERED))
        self.words = [cuda.made("cuMemHostGetDevicePointer_v2", self.mapped, 0), cuda.made("cuMemAlloc_v2", 8)]
        cuda.ok("cuMemsetD32_v2", self.words[1], 0, 2)
        self.logs: dict[int, tuple[list[int], list[int]]] = {}
        self.pool = cuda.made("cuDeviceGetDefaultMemPool", 0)
        self.scenes = Scenes(cuda, self.step, host_functions, self.expect)
        cuda.ok("cuCtxSynchronize")
        for _ in range(3):
            self.make_stream()
        for _ in range(3):
            self.make_event()

    # ---- what programs are made of

    def load(self) -> Module:
        handle = self.cuda.made("cuModuleLoadData", (HERE / "order.ptx").read_bytes())
        return Module(handle, self.function(handle, "tick"), Function(self.function(handle, "sized")))

    def function(self, module: int, name: str) -> int:
        return self.cuda.made("cuModuleGetFunction", module, name.encode())

    def expect(self, what: str, got: object, wanted: object) -> None:
        self.commands += 1
        if got != wanted:
            raise DiffersError(f"{what}: {got}, and CUDA's answer is {wanted}")

    def call(self, name: str, *arguments: object, code: int = OK) -> None:
        self.expect(name, self.cuda.call(name, *arguments), code)

    def some_stream(self, *places: Place) -> Stream:
        """Returns a stream whose next operation comes after all uses of the places; makes one wait if there is none."""
        streams = [s for s in self.order.streams if not self.held(s) or s.queued < MOST_BEHIND_A_GATE]
        if not streams:
            self.open_gates()
            streams = list(self.order.streams)
        fitting = [stream for stream in streams if self.order.may_use(stream, *places)]
        if fitting and self.random.random() < 0.7:
            return self.random.choice(fitting)
        stream = self.random.choice(streams)
        for place in places:
            if not self.order.may_use(stream, place):
                self.join(stream, place)
        return stream

    def held(self, stream: Stream) -> set[int]:
        """Gates that the stream's next operation may wait for."""
        return self.order.may_hold(stream)

    def join(self, stream: Stream, place: Place) -> None:
        assert place.last is not None
        users = [s for s in self.order.streams if s.number == place.last[0]]
        if not users:
            self.synchronise_context()
            return
        event = self.random.choice(self.events)
        self.record_in(event, users[0])
        self.call("cuStreamWaitEvent", stream.handle, event.handle, 0)
        self.order.wait(stream, event.record)

    def cell(self) -> tuple[int, Place]:
        index = self.random.randrange(CELLS)
        return self.memory + 8 * index, self.cells[index]

    def slot(self) -> tuple[int, Place]:
        index = self.random.randrange(SLOTS)
        return self.pinned + 8 * index, self.slots[index]

    def word(self) -> int:
        return self.random.getrandbits(63) | 1

    # ---- commands

    def make_stream(self) -> None:
        if len(self.order.streams) > 6:
            return
        blocking = self.random.random() < 0.5
        handle = self.cuda.made("cuStreamCreate", 0 if blocking else NON_BLOCKING)
        self.order.add(handle, blocking)

    def destroy_stream(self) -> None:
        free = [s for s in self.order.streams[1:] if not (s.blocking and s.gates)]
        if len(self.order.streams) > 3 and free:
            stream = self.random.choice(free)
            self.order.streams.remove(stream)
            self.call("cuStreamDestroy_v2", stream.handle)

    def make_event(self) -> None:
        timed = self.random.random() < 0.5
        handle = self.cuda.made("cuEventCreate", 0 if timed else DISABLE_TIMING)
        self.events.append(Event(handle, timed))

    def renew_event(self) -> None:
        event = self.events.pop(self.random.randrange(len(self.events)))
        self.call("cuEventDestroy_v2", event.handle)
        self.make_event()

    def launch(self) -> None:
        address, cell = self.cell()
        stream = self.some_stream(cell)
        a, b = self.word(), self.word()
        self.expect("launch", self.cuda.launch(self.step, stream.handle, (address, a, b)), OK)
        self.order.operate(stream, cell)
        cell.value = (cell.value * a + b) & MASK

    def burst(self, count: int | None = None) -> Stream:
        address, cell = self.cell()
        stream = self.some_stream(cell)
        count = count or self.random.choice([20, 100, 300])
        if self.held(stream):
            count = min(count, MOST_BEHIND_A_GATE)
        a, b = self.word(), self.word()
        for _ in range(count):
            if self.cuda.launch(self.step, stream.handle, (address, a, b)):
                raise DiffersError("a launch of a burst failed")
            cell.value = (cell.value * a + b) & MASK
        self.commands += count
        self.order.operate(stream, cell)
        stream.queued += count
        return stream

    def launch_folding(self) -> None:
        (address, cell), (source, other) = self.cell(), self.cell()
        if cell is other:
            return
        stream = self.some_stream(cell, other)
        a = self.word()
        self.expect("launch", self.cuda.launch(self.fold, stream.handle, (address, a, source)), OK)
        self.order.operate(stream, cell, other)
        cell.value = (cell.value * a + other.value) & MASK

    def sized(self) -> Function:
        return self.random.choice(self.modules).sized

    def set_dynamic_shared(self) -> None:
        function = self.sized()
        value = self.random.choice(
            [0, 1 << 10, 26 << 10, 48 << 10, 98 << 10, self.most_shared, self.most_shared + 1, -5]
        )
        fits = 0 <= value <= self.most_shared
        self.call("cuFuncSetAttribute", function.handle, MAX_DYNAMIC_SHARED, value, code=OK if fits else INVALID_VALUE)
        if fits:
            function.dynamic_shared = value
        elif self.random.random() < 0.5:
            code, now = self.attribute(function)
            self.expect("cuFuncGetAttribute", (code, now), (OK, function.dynamic_shared))

    def attribute(self, function: Function) -> tuple[int, int]:
        value = ctypes.c_int()
        return self.cuda.call(
            "cuFuncGetAttribute", ctypes.byref(value), MAX_DYNAMIC_SHARED, function.handle
        ), value.value

    def launch_sized(self) -> None:
        address, cell = self.cell()
        function = self.sized()
        stream = self.some_stream(cell)
        most = function.dynamic_shared
        shared = self.random.choice([0, 8, most, most, most // 2 & ~7, most + 8])
        a = self.word()
        code = self.cuda.launch(function.handle, stream.handle, (address, a, 0), shared=shared)
        self.expect(f"launch with {shared} of {most} bytes", code, OK if shared <= most else INVALID_VALUE)
        if shared <= most:
            self.order.operate(stream, cell)
            cell.value = (cell.value * a + shared) & MASK

    def raise_launch_lower(self) -> None:
        """Raises a function's limit of shared memory, launches, and does so again with a lower limit, as cuDNN does."""
        function = self.sized()
        address, cell = self.cell()
        for value in (98 << 10, 26 << 10):
            self.call("cuFuncSetAttribute", function.handle, MAX_DYNAMIC_SHARED, value)
            function.dynamic_shared = value
            stream = self.some_stream(cell)
            a = self.word()
            self.expect("launch", self.cuda.launch(function.handle, stream.handle, (address, a, 0), shared=value), OK)
            self.order.operate(stream, cell)
            cell.value = (cell.value * a + value) & MASK

    def occupancy(self) -> None:
        function = self.sized()
        code, blocks = self.cuda.number(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", function.handle, 32, function.dynamic_shared
        )
        self.expect("occupancy", (code, blocks > 0), (OK, True))

    def prefer_cache(self) -> None:
        if self.random.random() < 0.5:
            self.call("cuFuncSetCacheConfig", self.sized().handle, self.random.randrange(4))
        else:
            self.call("cuCtxSetCacheConfig", self.random.randrange(4))

    def set_limit(self) -> None:
        limit = self.random.choice([STACK_SIZE, PRINTF_FIFO, MALLOC_HEAP])
        value = self.random.choice([1, 2, 4, 8]) << 20 if limit else self.random.choice([1, 2, 4]) << 10
        refused = limit == MALLOC_HEAP and self.grabbed
        if self.order.closed:
            # CUDA leaves open whether this waits for work that a gate holds up.
            self.open_gates()
        self.call("cuCtxSetLimit", limit, value, code=INVALID_VALUE if refused else OK)
        if not refused:
            self.limits[limit] = value

    def get_limit(self) -> None:
        if self.limits:
            limit, value = self.random.choice(sorted(self.limits.items()))
            self.expect("cuCtxGetLimit", self.cuda.number("cuCtxGetLimit", limit), (OK, value))

    def launch_grabbing(self) -> None:
        address, cell = self.cell()
        stream = self.some_stream(cell)
        a, b = self.word(), self.word()
        self.expect("launch", self.cuda.launch(self.grab, stream.handle, (address, a, b)), OK)
        self.order.operate(stream, cell)
        cell.value = (cell.value * a + b) & MASK
        self.grabbed = True

    def launch_wrongly(self) -> None:
        address, _ = self.cell()
        stream = self.random.choice(self.order.streams).handle
        words = (address, 3, 5)
        wrong: list[tuple[int, dict[str, int], int]] = [
            (stream, {"grid": 0}, INVALID_VALUE),
            (stream, {"block": 1025}, INVALID_VALUE),
            (stream, {"block": 0}, INVALID_VALUE),
            (stream, {"shared": self.most_shared + 1}, INVALID_VALUE),
            (self.foreign_stream, {}, INVALID_HANDLE),
        ]
        at, size, code = self.random.choice(wrong)
        self.expect(f"launch with {size}", self.cuda.launch(self.step, at, words, **size), code)

    def load_module(self) -> None:
        if len(self.modules) < 4:
            # Loading code may wait for all running work.
            self.open_gates()
            self.modules.append(self.load())

    def launch_ticking(self) -> None:
        module = self.random.choice(self.modules)
        address, cell = self.cell()
        stream = self.some_stream(cell, module.counter)
        a, b = self.word(), self.word()
        self.expect("launch", self.cuda.launch(module.tick, stream.handle, (address, a, b)), OK)
        self.order.operate(stream, cell, module.counter)
        module.counter.value = (module.counter.value * 3 + b) & MASK
        cell.value = (cell.value * a + module.counter.value) & MASK

    def read_counter(self) -> None:
        module = self.random.choice(self.modules)
        if module.counter.last is not None and not self.order.host_may_use(module.counter):
            self.synchronise_context()
        size = ctypes.c_size_t()
        address = self.cuda.made("cuModuleGetGlobal_v2", ctypes.byref(size), module.handle, b"counter")
        self.open_gates()
        value = ctypes.c_uint64()
        self.call("cuMemcpyDtoH_v2", ctypes.byref(value), address, 8)
        self.expect("a module's variable", value.value, module.counter.value)

    def unload_module(self) -> None:
        if len(self.modules) > 1:
            module = self.modules.pop(self.random.randrange(1, len(self.modules)))
            if self.order.is_held(self.order.closed):
                self.open_gates()
            self.call("cuModuleUnload", module.handle)

    def fill(self) -> None:
        address, cell = self.cell()
        stream = self.some_stream(cell)
        word = self.random.getrandbits(32)
        self.call("cuMemsetD32Async", address, word, 2, stream.handle)
        self.order.operate(stream, cell)
        cell.value = word << 32 | word

    def copy_in(self) -> None:
        (address, cell), (source, slot) = self.cell(), self.slot()
        stream = self.some_stream(cell, slot)
        self.call("cuMemcpyHtoDAsync_v2", address, source, 8, stream.handle)
        self.order.operate(stream, cell, slot)
        cell.value = slot.value

    def copy_in_pageable(self) -> None:
        address, cell = self.cell()
        stream = self.some_stream(cell)
        if self.order.is_held(self.held(stream)):
            self.open_gates()
        value = self.word()
        source = ctypes.c_uint64(value)
        self.call("cuMemcpyHtoDAsync_v2", address, ctypes.addressof(source), 8, stream.handle)
        source.value = 0xDEAD
        self.order.operate(stream, cell)
        cell.value = value

    def copy_out(self) -> None:
        (address, cell), (target, slot) = self.cell(), self.slot()
        stream = self.some_stream(cell, slot)
        self.call("cuMemcpyDtoHAsync_v2", target, address, 8, stream.handle)
        self.order.operate(stream, cell, slot)
        slot.value = cell.value

    def copy_across(self) -> None:
        (address, cell), (source, other) = self.cell(), self.cell()
        if cell is not other:
            stream = self.some_stream(cell, other)
            self.call("cuMemcpyDtoDAsync_v2", address, source, 8, stream.handle)
            self.order.operate(stream, cell, other)
            cell.value = other.value

    def write_slot(self) -> None:
        target, slot = self.slot()
        if self.order.host_may_use(slot):
            slot.value = self.word()
            pointer_at(target)[0] = slot.value

    def read_slot(self) -> None:
        source, slot = self.slot()
        if self.order.host_may_use(slot):
            self.expect("page-locked memory", pointer_at(source)[0], slot.value)

    def call_host(self) -> None:
        """A host function that changes page-locked memory."""
        target, slot = self.slot()
        stream = self.some_stream(slot)
        add = self.word()

        def change() -> None:
            pointer_at(target)[0] = (pointer_at(target)[0] * 3 + add) & MASK

        self.call("cuLaunchHostFunc", stream.handle, self.host.function, self.host.leave(change))
        self.order.host_function(stream, slot)
        slot.value = (slot.value * 3 + add) & MASK

    def close_gate(self, stream: Stream | None = None) -> None:
        """Adds a host function that does not return, or a wait for an unwritten word, page-locked or on the device."""
        if not self.order.closed:
            stream = stream or self.some_stream()
            opened = threading.Event()
            gate = self.host.leave(opened.wait)
            kind = self.random.choice(["function", "page-locked", "device"])
            if kind == "function":
                self.gates[gate] = opened.set
                self.call("cuLaunchHostFunc", stream.handle, self.host.function, gate)
            elif kind == "page-locked":
                word = ctypes.cast(self.mapped, ctypes.POINTER(ctypes.c_uint32))
                self.gates[gate] = lambda: word.__setitem__(0, gate)
                self.call("cuStreamWaitValue32_v2", stream.handle, self.words[0], gate, AT_LEAST)
            else:
                write = ("cuStreamWriteValue32_v2", self.opener, self.words[1], gate, 0)
                self.gates[gate] = lambda: self.call(*write)
                self.call("cuStreamWaitValue32_v2", stream.handle, self.words[1], gate, AT_LEAST)
            self.order.close_gate(stream, gate)
            stream.queued = 0

    def scatter(self) -> None:
        """Many separate changes of memory that has a mirror: no later call waits for a gate because of them."""
        words = ctypes.cast(self.mapped, ctypes.POINTER(ctypes.c_uint32))
        for i in range(1, 1 + SCATTERED):
            words[2 * i] += 1

    def open_gates(self) -> None:
        for gate, opened in self.gates.items():
            opened()
            self.order.open_gate(gate, [event.record for event in self.events if event.record])
        self.gates.clear()

    def record_in(self, event: Event, stream: Stream) -> None:
        self.call("cuEventRecord", event.handle, stream.handle)
        event.record = self.order.record(stream)

    def record(self) -> None:
        self.record_in(self.random.choice(self.events), self.some_stream())

    def wait(self) -> None:
        stream, event = self.some_stream(), self.random.choice(self.events)
        self.call("cuStreamWaitEvent", stream.handle, event.handle, 0)
        self.order.wait(stream, event.record)

    def certain(self, record: Record | Stream) -> int | None:
        """The code of a query whether that is complete; None if it depends on time."""
        if record.gates & self.order.closed:
            return NOT_READY
        most = record.most if isinstance(record, Record) else self.order.upcoming(record)[0]
        return OK if self.order.knows(most) else None

    def query_event(self) -> None:
        event = self.random.choice(self.events)
        code = self.cuda.call("cuEventQuery", event.handle)
        wanted = self.certain(event.record) if event.record else OK
        if wanted is not None:
            self.expect("cuEventQuery", code, wanted)
        if code == OK:
            self.order.waited_for(event.record)

    def query_stream(self) -> None:
        stream = self.some_stream()
        wanted = self.certain(stream)
        code = self.cuda.call("cuStreamQuery", stream.handle)
        # A query of the legacy stream covers only its own work.
        if stream.number and wanted is not None:
            self.expect("cuStreamQuery", code, wanted)

    def elapse(self) -> None:
        start, end = self.random.choice(self.events), self.random.choice(self.events)
        code, time = self.cuda.elapsed(start.handle, end.handle)
        if not (start.timed and end.timed and start.record and end.record):
            self.expect("cuEventElapsedTime", code, INVALID_HANDLE)
            return
        states = {self.certain(start.record), self.certain(end.record)}
        if NOT_READY in states:
            self.expect("cuEventElapsedTime", code, NOT_READY)
        elif states == {OK}:
            self.expect("cuEventElapsedTime", code, OK)
            if start.record.stream == end.record.stream:
                between = end.record.place - start.record.place
                self.expect("does time run the right way", time * between >= 0, True)

    def foreign(self) -> None:
        if self.random.random() < 0.5:
            self.call("cuEventRecord", self.events[0].handle, self.foreign_stream, code=INVALID_HANDLE)
        else:
            stream = self.random.choice(self.order.streams)
            self.call("cuEventRecord", self.foreign_event, stream.handle, code=INVALID_HANDLE)

    def temporary(self) -> None:
        """Memory that is allocated, used and freed at once, most often where other memory was freed before."""
        address, cell = self.cell()
        stream = self.some_stream(cell)
        ordered = self.random.random() < 0.6
        if not ordered and self.order.closed:
            self.open_gates()
        words = self.random.choice([1, 4096, 1 << 18])
        if ordered:
            memory = self.cuda.made("cuMemAllocAsync", 8 * words, stream.handle)
        else:
            memory = self.cuda.made("cuMemAlloc_v2", 8 * words)
        word = self.random.getrandbits(32)
        self.call("cuMemsetD32Async", memory, word, 2 * words, stream.handle)
        a = self.word()
        last = memory + 8 * (words - 1)
        self.expect("launch", self.cuda.launch(self.fold, stream.handle, (address, a, last)), OK)
        self.order.operate(stream, cell)
        stream.queued += 3
        cell.value = (cell.value * a + (word << 32 | word)) & MASK
        if ordered:
            self.call("cuMemFreeAsync", memory, stream.handle)
        else:
            self.call("cuMemFree_v2", memory)

    def scene(self) -> None:
        """Runs a scene that chance makes only rarely."""
        self.open_gates()
        scenes = [self.scenes.late_record, self.scenes.reused_memory, self.scenes.new_memory]
        self.random.choices(scenes, [4, 4, 1])[0]()

    def trim(self) -> None:
        self.call("cuMemPoolTrimTo", self.pool, 0)

    def synchronise_stream(self) -> None:
        stream = self.some_stream()
        if self.order.is_held(self.held(stream)):
            self.open_gates()
        self.call("cuStreamSynchronize", stream.handle)
        self.order.waited_for_stream(stream)

    def synchronise_event(self) -> None:
        event = self.random.choice(self.events)
        if event.record and self.order.is_held(event.record.may_gates):
            self.open_gates()
        self.call("cuEventSynchronize", event.handle)
        self.order.waited_for(event.record)

    def synchronise_context(self) -> None:
        self.open_gates()
        self.call("cuCtxSynchronize")
        self.order.waited_for_all()

    # ---- a program

    #: How often each command is chosen.
    COMMANDS: ClassVar = {
        launch: 12, burst: 2, launch_folding: 6, launch_sized: 8, set_dynamic_shared: 5, raise_launch_lower: 4,
        occupancy: 2, prefer_cache: 1, set_limit: 1, get_limit: 1, launch_grabbing: 0.5, launch_wrongly: 3,
        load_module: 1, launch_ticking: 5, read_counter: 0.3, unload_module: 1.5, fill: 4, copy_in: 4,
        copy_in_pageable: 2, copy_out: 4, copy_across: 3, write_slot: 3, read_slot: 4, call_host: 3, close_gate: 2,
        open_gates: 1, record: 6, wait: 6, query_event: 4, query_stream: 2, elapse: 3, foreign: 1, temporary: 4,
        scene: 0.3, scatter: 1, trim: 0.5, make_stream: 1.5, destroy_stream: 1.5, renew_event: 2,
        synchronise_stream: 0.6, synchronise_event: 0.6, synchronise_context: 0.2,
    }  # fmt: skip

    def run(self, fewest: int) -> None:
        commands, weights = list(self.COMMANDS), list(self.COMMANDS.values())
        fewest += LAUNCHES_IN_FLIGHT
        busy_at = self.commands + self.random.randrange(20)
        while self.commands < fewest:
            if self.commands >= busy_at:
                self.fill_a_queue()
                busy_at = 1 << 60
            self.random.choices(commands, weights)[0](self)

    def fill_a_queue(self) -> None:
        self.open_gates()
        stream = self.burst(self.random.randrange(LAUNCHES_IN_FLIGHT + 50, LAUNCHES_IN_FLIGHT + 300))
        if self.random.random() < 0.3:
            self.limit_behind(stream)

    def limit_behind(self, stream: Stream) -> None:
        """The size of the heap cannot change once a kernel that uses it was launched, also one that still waits."""
        address, cell = self.cell()
        if self.order.closed or not self.order.may_use(stream, cell):
            return
        a, b = self.word(), self.word()
        self.expect("launch", self.cuda.launch(self.grab, stream.handle, (address, a, b)), OK)
        self.order.operate(stream, cell)
        cell.value = (cell.value * a + b) & MASK
        self.grabbed = True
        self.call("cuCtxSetLimit", MALLOC_HEAP, 1 << 20, code=INVALID_VALUE)

    def check(self) -> None:
        self.synchronise_context()
        now = (ctypes.c_uint64 * CELLS)()
        self.call("cuMemcpyDtoH_v2", now, self.memory, 8 * CELLS)
        self.expect("device memory", list(now), [cell.value for cell in self.cells])
        slots = [pointer_at(self.pinned + 8 * i)[0] for i in range(SLOTS)]
        self.expect("page-locked memory", slots, [slot.value for slot in self.slots])

    def end(self) -> None:
        """Half of the programs end their context while it is at work."""
        self.open_gates()
        if self.random.random() < 0.5:
            address, _ = self.cell()
            for _ in range(100):
                self.cuda.launch(self.step, 0, (address, 3, 5))
        self.call("cuCtxDestroy_v2", self.context)


def main() -> int:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    fewest = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    cuda, host_functions = Driver(), HostFunctions()
    cuda.ok("cuInit", 0)
    other = cuda.made("cuCtxCreate_v2", 0, 0)
    foreign = (cuda.made("cuStreamCreate", NON_BLOCKING), cuda.made("cuEventCreate", 0))
    failed = 0
    for seed in range(first, first + count):
        cuda.ok("cuCtxSetCurrent", other)
        program = Program(cuda, seed, host_functions, foreign)
        differs = None
        try:
            program.run(fewest)
            program.check()
            program.end()
        except DiffersError as difference:
            differs = str(difference)
        print(json.dumps({"seed": seed, "commands": program.commands, "differs": differs}), flush=True)
        if differs is not None:
            failed += 1
            # The rest of the program would disturb the next one.
            break
    sys.stdout.flush()
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
