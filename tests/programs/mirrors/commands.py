"""The steps of one thread of a random program, and the content that each word must have afterwards."""

import ctypes
import os

import numpy as np
from cu import cu, launch, ok, pinned, u32, u64, upload

from mirrors.writers import Writers

SLOTS, MOST, LANDING = 3, 256, 16384
NOT_READY, AT_LEAST, BLOCKING = 600, 0, 1
function_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
callback_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


class DiffersError(AssertionError):
    pass


class Slot:
    """The inputs and outputs of one launch, in page-locked memory."""

    def __init__(self):
        self.places, self.values, self.out = pinned(MOST, np.uint64), pinned(MOST), pinned(MOST)
        self.arrays = self.places, self.values, self.out
        self.devices = [u64(int(ok(cu.cuMemHostGetDevicePointer(array.ctypes.data, 0)))) for array in self.arrays]


class Commands:
    """One thread of a program. Each owns some words of each memory, in stripes; `done` gets the names of its steps."""

    def __init__(self, chance, memories, owned, functions, done, elsewhere):
        self.chance, self.memories, self.owned, self.done = chance, memories, owned, done
        self.elsewhere = elsewhere
        #: The steps of this round so far.
        self.steps = []
        self.exchange, self.bump = functions
        self.streams = [ok(cu.cuStreamCreate(1)) for _ in range(2)]
        self.stream = self.streams[0]
        self.event, self.joint = (ok(cu.cuEventCreate(2 | BLOCKING * int(self.any(2)))) for _ in range(2))
        self.slots, self.flag = [Slot() for _ in range(SLOTS)], pinned(2)
        self.flag[:] = 0
        self.flag_device = int(ok(cu.cuMemHostGetDevicePointer(self.flag.ctypes.data, 0)))
        self.writers, self.expected, self.called = Writers(), [], []
        self.busy = [np.zeros(len(memory.words), bool) for memory in memories]
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.commands = [self.exchange_words, self.exchange_words, self.bump_words, self.copy_words, self.fill_words]
        self.commands += [self.clear_pages, self.land_words]
        self.source = self.random_words(LANDING)
        self.on_device = int(upload(self.source))
        if os.environ.get("CUDA_LAUNCH_BLOCKING") != "1":
            # Such a launch would wait for a word that this thread writes after it.
            self.commands.append(self.exchange_behind_a_word)
        self.waits = [name for name in dir(self) if name.startswith(("in_", "by_"))]
        if elsewhere:
            self.waits += ["wait_by_device", "wait_by_process"]

    # ---- choices

    def any(self, end):
        return int(self.chance.integers(end))

    def some(self, choices):
        return choices[self.any(len(choices))]

    def note(self, name, *where):
        self.done.add(name)
        self.steps.append((name, *where))

    def random_words(self, count):
        return self.chance.integers(0, 1 << 32, count, np.uint32)

    def run(self, index, is_free):
        """A place of a memory and how many words from there on are this thread's; None if there is none."""
        owned = self.owned[index]
        at = int(self.some(owned))
        if self.any(4) == 0:
            # A whole block, as O_DIRECT needs it.
            at -= (self.memories[index].address // 4 + at) % 128
            if at < 0 or self.any(2):
                at = int(owned[0])
        wanted = int(self.some([1, 1, 2, 8, 128]))
        within = np.zeros(wanted, bool)
        inside = owned[(owned >= at) & (owned < at + wanted)]
        within[inside - at] = ~self.busy[index][inside] if is_free else True
        count = wanted if within.all() else int(np.argmin(within))
        return (at, count) if count else None

    def choose_run(self, indexes, is_free):
        for _ in range(20):
            index = self.some(indexes)
            if found := self.run(index, is_free):
                return index, *found
        return None

    # ---- the host

    def usable(self):
        """The memories that the host may use now."""
        is_idle = not any(busy.any() for busy in self.busy)
        return [index for index, memory in enumerate(self.memories) if is_idle or memory.is_concurrent]

    def write(self):
        usable = self.usable()
        found = self.choose_run(usable, is_free=True) if usable else None
        if found is None:
            return
        index, at, count = found
        memory, values = self.memories[index], self.random_words(count)
        way = self.some(self.writers.fitting(memory, at, count))
        self.note(way.__name__, index, at, count)
        way(memory, at, values)
        memory.expected[at : at + count] = values

    def check(self):
        for index, (memory, owned) in enumerate(zip(self.memories, self.owned, strict=True)):
            found, wanted = memory.words[owned], memory.expected[owned]
            if (found != wanted).any():
                at = owned[found != wanted]
                given = list(zip(memory.words[at[:4]], memory.expected[at[:4]], strict=True))
                raise DiffersError(
                    f"memory {index} ({type(memory).__name__}) at {at[:4]} of {len(at)}: {given}, {self.steps}"
                )

    def check_in_a_child(self):
        """A forked child sees the parent's words."""
        inherited = [i for i, memory in enumerate(self.memories) if memory.is_inherited]
        self.note("child_reads")
        child = os.fork()
        if child == 0:
            pairs = [(self.memories[i], self.owned[i]) for i in inherited]
            os._exit(not all((m.words[owned] == m.expected[owned]).all() for m, owned in pairs))
        if os.waitpid(child, 0)[1]:
            raise DiffersError("a forked child sees other words")

    # ---- the device

    def turn_to_a_stream(self):
        """Changes the stream at random. Later work runs after all earlier work, on the same stream or the other."""
        stream = self.some(self.streams)
        if stream is not self.stream:
            ok(cu.cuEventRecord(self.joint, self.stream))
            ok(cu.cuStreamWaitEvent(stream, self.joint, 0))
            self.stream = stream

    def words_for_kernels(self, is_free):
        pairs = []
        for index in self.chance.permutation(len(self.memories))[: 1 + self.any(3)]:
            owned = self.owned[index]
            free = owned[~self.busy[index][owned]] if is_free else owned
            chosen = self.chance.choice(free, min(len(free), 1 + self.any(MOST // 3)), replace=False)
            pairs.append((int(index), chosen))
        return pairs

    def use(self, index, at):
        self.busy[index][at] = True

    def launch_exchange(self, slot, pairs):
        """Launches the kernel. Returns the slot and the number of words, to be checked when it has run."""
        slot = self.slots[slot]
        count = sum(len(at) for _, at in pairs)
        places = [self.memories[index].on_device() + 4 * at.astype(np.uint64) for index, at in pairs]
        slot.places[:count] = np.concatenate(places)
        slot.values[:count] = self.random_words(count)
        launch(self.exchange, 1, MOST, [*slot.devices, u32(count)], self.stream)
        return slot, count

    def have_exchanged(self, slot, count, pairs):
        before = np.concatenate([self.memories[index].expected[at] for index, at in pairs])
        self.expected.append((slot, count, before))
        values = slot.values[:count].copy()
        for index, at in pairs:
            self.memories[index].expected[at], values = values[: len(at)], values[len(at) :]
            self.use(index, at)

    def exchange_words(self, slot):
        pairs = self.words_for_kernels(is_free=False)
        self.have_exchanged(*self.launch_exchange(slot, pairs), pairs)

    def exchange_behind_a_word(self, slot):
        """The kernel sees what the host writes after the launch and before the word that the stream waits for."""
        pairs = self.words_for_kernels(is_free=True)
        if not sum(len(at) for _, at in pairs):
            return
        for index, _ in pairs:
            # On a share a mirror begins only when nothing may write to its memory, so not behind the word.
            self.memories[index].on_device()
        value = int(self.flag[0]) + 1
        ok(cu.cuStreamWaitValue32(self.stream, self.flag_device, value, AT_LEAST))
        launched = self.launch_exchange(slot, pairs)
        for index, at in pairs:
            if self.memories[index].is_concurrent:
                some = at[: self.any(len(at) + 1)]
                self.memories[index].words[some] = self.memories[index].expected[some] = self.random_words(len(some))
        self.flag[0] = value
        self.have_exchanged(*launched, pairs)

    def bump_words(self, slot):
        index, at, count = self.choose_run(range(len(self.memories)), is_free=False)
        memory, by = self.memories[index], self.any(1 << 32)
        place = memory.address if memory.is_found else memory.on_device()
        launch(self.bump, 1, count, [u64(place + 4 * at), u32(by)], self.stream)
        memory.expected[at : at + count] += np.uint32(by)
        self.use(index, slice(at, at + count))

    def copy_words(self, slot):
        everything = range(len(self.memories))
        (source, start, count), (target, at, room) = (self.choose_run(everything, is_free=False) for _ in range(2))
        count = min(count, room)
        if source == target and abs(start - at) < count:
            return
        there, here = self.memories[target], self.memories[source]
        ok(cu.cuMemcpyDtoDAsync(there.on_device() + 4 * at, here.on_device() + 4 * start, 4 * count, self.stream))
        there.expected[at : at + count] = here.expected[start : start + count]
        self.use(source, slice(start, start + count))
        self.use(target, slice(at, at + count))

    def fill_words(self, slot):
        index, at, count = self.choose_run(range(len(self.memories)), is_free=False)
        self.steps.append(("at", index, at, count))
        memory, value = self.memories[index], self.any(1 << 32)
        ok(cu.cuMemsetD32Async(memory.on_device() + 4 * at, value, count, self.stream))
        memory.expected[at : at + count] = value
        self.use(index, slice(at, at + count))

    def long_run(self):
        """Writes many words of one memory, which may be whole pages, where no other thread owns words between them."""
        index = self.any(len(self.memories))
        owned = self.owned[index]
        if len(owned) < len(self.memories[index].words):
            return self.choose_run([index], is_free=False)
        at = self.any(len(owned))
        if self.any(2):
            at -= (self.memories[index].address // 4 + at) % 1024
        at = max(at, 0)
        return index, at, 1 + self.any(min(len(owned) - at, LANDING))

    def clear_pages(self, slot):
        index, at, count = self.long_run()
        memory = self.memories[index]
        self.steps.append(("at", index, at, count))
        ok(cu.cuMemsetD8Async(memory.on_device() + 4 * at, 0, 4 * count, self.stream))
        memory.expected[at : at + count] = 0
        self.use(index, slice(at, at + count))

    def land_words(self, slot):
        """Copies from the device to the memory's place in the program."""
        index, at, count = self.long_run()
        memory, start = self.memories[index], self.any(LANDING + 1 - count)
        self.steps.append(("at", index, at, count))
        ok(cu.cuMemcpyDtoHAsync(memory.address + 4 * at, self.on_device + 4 * start, 4 * count, self.stream))
        memory.expected[at : at + count] = self.source[start : start + count]
        self.use(index, slice(at, at + count))

    # ---- waits

    def in_stream(self):
        ok(cu.cuStreamSynchronize(self.stream))

    def in_context(self):
        ok(cu.cuCtxSynchronize())

    def by_event(self):
        ok(cu.cuEventRecord(self.event, self.stream))
        ok(cu.cuEventSynchronize(self.event))

    def by_event_query(self):
        ok(cu.cuEventRecord(self.event, self.stream))
        self.ask_until_ready(cu.cuEventQuery, self.event)

    def by_stream_query(self):
        self.ask_until_ready(cu.cuStreamQuery, self.stream)

    def ask_until_ready(self, ask, what):
        while (code := int(ask(what)[0])) == NOT_READY:
            pass
        assert code == 0, code

    def join_the_default_stream(self):
        ok(cu.cuEventRecord(self.event, self.stream))
        ok(cu.cuStreamWaitEvent(0, self.event, 0))

    def by_copy_to_the_host(self):
        self.join_the_default_stream()
        index, at, count = self.choose_run(range(len(self.memories)), is_free=False)
        memory, found = self.memories[index], np.zeros(count, np.uint32)
        ok(cu.cuMemcpyDtoH(found, memory.on_device() + 4 * at, found.nbytes))
        if (found != memory.expected[at : at + count]).any():
            raise DiffersError("a copy brought other words")

    def by_copy_to_the_device(self):
        self.join_the_default_stream()
        index, at, count = self.choose_run(range(len(self.memories)), is_free=False)
        memory, given = self.memories[index], self.random_words(count)
        ok(cu.cuMemcpyHtoD(memory.on_device() + 4 * at, given, given.nbytes))
        memory.expected[at : at + count] = given
        if not memory.is_concurrent:
            # A copy to host memory is complete when it returns; one to the device's may still be on its way.
            self.in_stream()

    def by_fill(self):
        self.join_the_default_stream()
        locked = [index for index, memory in enumerate(self.memories) if memory.is_concurrent]
        if not locked:
            return self.in_stream()
        index, at, count = self.choose_run(locked, is_free=False)
        memory, value = self.memories[index], self.any(1 << 32)
        ok(cu.cuMemsetD32(memory.on_device() + 4 * at, value, count))
        memory.expected[at : at + count] = value
        return None

    def check_in_a_call(self):
        try:
            self.check()
        except DiffersError as error:
            self.called.append(error)

    def by_host_function(self):
        call = function_type(lambda _: self.check_in_a_call())
        assert self.driver.cuLaunchHostFunc(ctypes.c_void_p(int(self.stream)), call, None) == 0
        self.in_stream()

    def by_callback(self):
        call = callback_type(lambda *_: self.check_in_a_call())
        assert self.driver.cuStreamAddCallback(ctypes.c_void_p(int(self.stream)), call, None, 0) == 0
        self.in_stream()

    def by_written_word(self):
        value = int(self.flag[1]) + 1
        ok(cu.cuStreamWriteValue32(self.stream, self.flag_device + 4, value, 0))
        while self.flag[1] != value:
            pass

    def wait_by_device(self):
        ok(cu.cuEventRecord(self.event, self.stream))
        self.elsewhere.wait_by_device(self.event, self.any(3))

    def wait_by_process(self):
        self.elsewhere.wait_by_process(self.stream, self.any(2))

    # ---- a program

    def round(self):
        self.steps.clear()
        for _ in range(self.any(5)):
            self.write()
        for slot in range(1 + self.any(SLOTS)):
            self.turn_to_a_stream()
            command = self.some(self.commands)
            self.note(command.__name__)
            command(slot)
            # While it may be at work the host writes only words that are not the device's.
            for _ in range(self.any(3)):
                self.write()
        wait = self.some(self.waits)
        self.note(wait)
        getattr(self, wait)()
        if self.called:
            raise self.called[0]
        for busy in self.busy:
            busy[:] = False
        self.check()
        for slot, count, before in self.expected:
            if (slot.out[:count] != before).any():
                raise DiffersError(f"a kernel saw other words, seen after {wait}")
        self.expected.clear()
        if self.any(8) == 0:
            self.check_in_a_child()

    def end(self):
        self.writers.close()
        for stream in self.streams:
            ok(cu.cuStreamDestroy(stream))
        for array in (self.flag, *(array for slot in self.slots for array in slot.arrays)):
            ok(cu.cuMemFreeHost(array.ctypes.data))
