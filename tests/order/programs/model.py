"""CUDA's documented order, as clocks: which work certainly comes before which, and what may still be held up.

A program that this model lets a generator write is free of races: each access to a place comes after all earlier ones.
Then the result is that of its calls in their order, whatever a GPU does meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Stream number n -> the number of its operations; -n - 1 -> that of its records and waits. Those are no operations:
#: CUDA leaves open whether they take part in the legacy stream's barriers.
Clock = dict[int, int]


def merge(into: Clock, other: Clock) -> None:
    for stream, count in other.items():
        if into.get(stream, 0) < count:
            into[stream] = count


@dataclass(eq=False)
class Stream:
    number: int
    handle: int
    #: Does the legacy default stream wait for it, and it for that one?
    blocking: bool
    #: Its last operation, and the work before that.
    clock: Clock = field(default_factory=dict)
    #: Gates that hold that up, and those that may.
    gates: set[int] = field(default_factory=set)
    may_gates: set[int] = field(default_factory=set)
    #: Operations since the host last knew it to be empty.
    queued: int = 0


@dataclass(eq=False)
class Place:
    """Memory that operations read and write."""

    value: int = 0
    last: tuple[int, int] | None = None


@dataclass(eq=False)
class Record:
    """The work that is complete when an event is.

    An event certainly waits for `clock` and `gates`, and may wait for `most` and `may_gates`.
    """

    clock: Clock
    gates: set[int]
    most: Clock
    may_gates: set[int]
    #: Where it was recorded: the stream's number, and how many records that had before.
    stream: int
    place: int


@dataclass(eq=False)
class Event:
    handle: int
    timed: bool
    record: Record | None = None


class Order:
    """The streams of one context. Stream 0 is the legacy default stream."""

    def __init__(self, legacy_handle: int) -> None:
        self.legacy = Stream(0, legacy_handle, blocking=False)
        self.streams = [self.legacy]
        self.host: Clock = {}
        self.closed: set[int] = set()
        self.host_functions: list[tuple[int, int]] = []
        self._made = 0
        self._records = 0

    def add(self, handle: int, blocking: bool) -> Stream:
        self._made += 1
        stream = Stream(self._made, handle, blocking)
        self.streams.append(stream)
        return stream

    def _others(self, stream: Stream) -> list[Stream]:
        if stream is self.legacy:
            return [other for other in self.streams if other.blocking]
        return [self.legacy] if stream.blocking else []

    def upcoming(self, stream: Stream) -> tuple[Clock, set[int]]:
        """Returns the clock that the stream's next operation follows, and the gates that hold it up."""
        clock, gates = dict(stream.clock), set(stream.gates)
        merge(clock, self.host)
        for other in self._others(stream):
            merge(clock, {key: count for key, count in other.clock.items() if key != -other.number - 1})
            gates |= other.gates
        return clock, gates

    def may_hold(self, stream: Stream) -> set[int]:
        """Gates that may hold up the stream's next operation."""
        return stream.may_gates.union(*(other.may_gates for other in self._others(stream)))

    def may_use(self, stream: Stream, *places: Place) -> bool:
        """Whether an operation of the stream would come after everything that used these places."""
        clock, _ = self.upcoming(stream)
        return all(place.last is None or clock.get(place.last[0], 0) >= place.last[1] for place in places)

    def host_may_use(self, place: Place) -> bool:
        return place.last is None or self.host.get(place.last[0], 0) >= place.last[1]

    def operate(self, stream: Stream, *places: Place) -> None:
        """Adds an operation to the stream that uses the places."""
        stream.may_gates = self.may_hold(stream)
        stream.clock, stream.gates = self.upcoming(stream)
        count = stream.clock.get(stream.number, 0) + 1
        stream.clock[stream.number] = count
        stream.queued += 1
        for place in places:
            place.last = (stream.number, count)

    def host_function(self, stream: Stream, *places: Place) -> None:
        self.operate(stream, *places)
        self.host_functions.append((stream.number, stream.clock[stream.number]))

    def close_gate(self, stream: Stream, gate: int) -> None:
        self.host_function(stream)
        self.closed.add(gate)
        stream.gates.add(gate)
        stream.may_gates.add(gate)

    def open_gate(self, gate: int, records: list[Record]) -> None:
        self.closed.discard(gate)
        for holder in (*self.streams, *records):
            holder.gates.discard(gate)
            holder.may_gates.discard(gate)

    @staticmethod
    def _note(stream: Stream) -> None:
        key = -stream.number - 1
        stream.clock[key] = stream.clock.get(key, 0) + 1
        stream.queued += 1

    def record(self, stream: Stream) -> Record:
        self._note(stream)
        self._records += 1
        most, _ = self.upcoming(stream)
        return Record(dict(stream.clock), set(stream.gates), most, self.may_hold(stream), stream.number, self._records)

    def wait(self, stream: Stream, record: Record | None) -> None:
        if record is not None:
            self._note(stream)
            merge(stream.clock, record.clock)
            stream.gates |= record.gates
            stream.may_gates |= record.may_gates

    def is_held(self, gates: set[int]) -> bool:
        """Whether a wait for something behind these gates may never end. One thread may run all host functions."""
        self.host_functions = [(s, n) for s, n in self.host_functions if self.host.get(s, 0) < n]
        return bool(gates & self.closed) or (bool(self.closed) and bool(self.host_functions))

    def knows(self, clock: Clock) -> bool:
        """Whether the host knows that everything up to the clock is complete."""
        return all(self.host.get(stream, 0) >= count for stream, count in clock.items())

    def waited_for_stream(self, stream: Stream) -> None:
        merge(self.host, stream.clock)
        stream.queued = 0

    def waited_for_all(self) -> None:
        for stream in self.streams:
            merge(self.host, stream.clock)
            stream.queued = 0

    def waited_for(self, record: Record | None) -> None:
        if record is not None:
            merge(self.host, record.clock)
