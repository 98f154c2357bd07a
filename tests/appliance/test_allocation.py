"""Sums never exceed a GPU, nothing overtakes a reservation, and the best fit is taken."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from remotegpu.api.quantities import Ask, Compute
from remotegpu.appliance.shares.allocation import MIN_SHARE_BYTES, GpuLeases, ImpossibleError, LeasedGpus, NoRoomError

MIB = 1 << 20
SIZES = (1000 * MIB, 1000 * MIB, 400 * MIB)
# Without tokens all callers are the same owner.
OWNERS = ("", "alice", "bob")


class AllocatorMachine(RuleBasedStateMachine):
    """Any order of requests, releases and failing GPUs, against a list kept by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = GpuLeases(SIZES, divides_time=True)
        self.placed: dict[str, LeasedGpus] = {}
        self.waiting: list[str] = []
        self.asks: dict[str, Ask] = {}
        self.owners: dict[str, str] = {}
        self.since: dict[str, float] = {}
        self.now = 0.0

    @rule(
        count=st.integers(1, 3),
        milli=st.integers(1, 1000),
        memory=st.one_of(st.just(0), st.integers(1, 500 * MIB)),
        time=st.one_of(st.just(0), st.integers(1, 1000)),
        owner=st.sampled_from(OWNERS),
    )
    def ask(self, count: int, milli: int, memory: int, time: int, owner: str) -> None:
        key, ask = f"request {len(self.asks)}", Ask(count, 0 if memory else milli, memory, Compute(time))
        self.asks[key], self.owners[key], self.since[key] = ask, owner, self.now
        try:
            self.allocator.submit(key, ask, self.now, owner)
        except ImpossibleError:
            return
        self.waiting.append(key)
        self.settle()

    @rule(choice=st.randoms(use_true_random=False))
    def release_one(self, choice: st.randoms) -> None:  # type: ignore[valid-type]
        known = [*self.placed, *self.waiting]
        if known:
            key = choice.choice(known)  # type: ignore[attr-defined]
            self.allocator.withdraw(key)
            self.placed.pop(key, None)
            if key in self.waiting:
                self.waiting.remove(key)
            self.settle()

    @rule(gpu=st.integers(0, 2), message=st.sampled_from(["", "broken"]))
    def health(self, gpu: int, message: str) -> None:
        self.allocator.gpus[gpu].unhealthy = message
        self.settle()

    @rule(seconds=st.sampled_from([1.0, 300.0, 599.0, 600.0, 1200.0, 1800.0, 2400.0]))
    def time_passes(self, seconds: float) -> None:
        """Between the times of `next_change` no request gets anything."""
        until = self.now + seconds
        while (change := self.allocator.next_change(self.now)) is not None and change <= until:
            self.now = change
            self.settle()
        self.now = until
        assert self.allocator.settle(self.now) == []

    def settle(self) -> None:
        before = list(self.waiting)
        for key, placement in self.allocator.settle(self.now):
            self.waiting.remove(key)
            assert not any(self.allocator.gpus[gpu].unhealthy for gpu in placement.gpus)
            self.placed[key] = placement
            ahead = [each for each in before[: before.index(key)] if each in self.waiting]
            assert not any(self.holds_up(key, each) for each in ahead), "somebody overtook"

    def waited(self, key: str) -> float:
        return self.now - self.since[key]

    def holds_up(self, key: str, ahead: str) -> bool:
        """The documented rule: half an hour; ten minutes for an owner that already has a share; forty minutes within
        one owner, and in all.
        """
        if self.waited(key) >= 2400:
            return False
        if self.owners[key] == self.owners[ahead]:
            return self.waited(ahead) < 2400
        has_part = self.owners[ahead] and self.owners[ahead] in {self.owners[each] for each in self.placed}
        return 600 <= self.waited(ahead) < 2400 if has_part else self.waited(ahead) < 1800

    @invariant()
    def sums_are_those_of_the_leases_and_fit(self) -> None:
        for index, size in enumerate(SIZES):
            leased = sum(p.sizes[p.gpus.index(index)] for p in self.placed.values() if index in p.gpus)
            assert self.allocator.gpus[index].leased == leased <= size
            assert self.allocator.gpus[index].guaranteed == self.time_on(index) <= 1000

    def time_on(self, index: int) -> int:
        """The time asked for, else the memory in thousandths of the GPU's; rounding may have lost one byte of it."""
        placed = [(self.asks[key], p.sizes[p.gpus.index(index)]) for key, p in self.placed.items() if index in p.gpus]
        return sum(ask.compute.milli or max(1, (size + 1) * 1000 // SIZES[index]) for ask, size in placed)

    @invariant()
    def each_has_what_it_asked_for(self) -> None:
        for key, placement in self.placed.items():
            ask = self.asks[key]
            assert len(set(placement.gpus)) == len(placement.gpus) == ask.count
            assert all(ask.bytes_of(SIZES[g]) == s for g, s in zip(placement.gpus, placement.sizes, strict=True))

    @invariant()
    def who_waits_really_does_not_fit_or_is_held_up(self) -> None:
        for place, key in enumerate(self.waiting):
            if not any(self.holds_up(key, each) for each in self.waiting[:place]):
                self.does_not_fit(key)
            assert self.allocator.reason(key)

    def does_not_fit(self, key: str) -> None:
        ask = self.asks[key]
        free = [0 if g.unhealthy else g.shareable - g.leased for g in self.allocator.gpus]
        times = [ask.compute.milli or max(1, (ask.bytes_of(size) + 1) * 1000 // size) for size in SIZES]
        in_time = [time + self.time_on(index) <= 1000 for index, time in enumerate(times)]
        fits = [
            MIN_SHARE_BYTES <= ask.bytes_of(size) <= left and time
            for size, left, time in zip(SIZES, free, in_time, strict=True)
        ]
        assert sum(fits) < ask.count


TestAllocator = AllocatorMachine.TestCase


def place(allocator: GpuLeases, key: str, ask: Ask) -> LeasedGpus | None:
    allocator.submit(key, ask, 0)
    return dict(allocator.settle(0)).get(key)


def test_who_waits_behind_its_own_tenant_keeps_others_from_what_is_free() -> None:
    allocator = GpuLeases(SIZES)
    allocator.gpus[0].unhealthy = "broken"
    # It needs two of the large ones, and keeps other tenants from them for half an hour, its own for longer.
    allocator.submit("large", Ask(2, 500), 0, "alice")
    allocator.gpus[2].unhealthy = "broken"
    assert allocator.settle(1800) == []
    allocator.submit("behind it", Ask(milli_per_gpu=500), 1800, "alice")
    allocator.submit("after both", Ask(milli_per_gpu=500), 1800, "bob")
    assert allocator.settle(2399) == []
    assert [key for key, _ in allocator.settle(2400)] == ["behind it", "after both"]


def test_the_tightest_gpu_is_taken() -> None:
    allocator = GpuLeases(SIZES)
    assert place(allocator, "a", Ask(memory_bytes=300 * MIB)) == LeasedGpus((2,), (300 * MIB,))
    assert place(allocator, "b", Ask(milli_per_gpu=500)) == LeasedGpus((0,), (500 * MIB,))
    assert place(allocator, "c", Ask(milli_per_gpu=400)) == LeasedGpus((0,), (400 * MIB,))


def test_guarantees_of_time_are_at_most_all_of_it() -> None:
    allocator = GpuLeases([100 * MIB], divides_time=True)
    assert place(allocator, "much", Ask(milli_per_gpu=100, compute=Compute(800)))
    assert place(allocator, "more", Ask(milli_per_gpu=300)) is None
    assert "0.2 of its time free" in allocator.reason("more")
    allocator.withdraw("more")
    with pytest.raises(NoRoomError, match=r"0\.2 of its time"):
        allocator.place("claim", LeasedGpus((0,), (10 * MIB,), Compute(201)))
    allocator.place("claim", LeasedGpus((0,), (10 * MIB,), Compute(100)))
    assert place(allocator, "as memory", Ask(milli_per_gpu=100))
    with pytest.raises(NoRoomError, match="time"):
        allocator.resize("as memory", (20 * MIB,), 0)
    assert allocator.gpus[0].guaranteed == 1000


def test_without_turns_no_time_is_promised() -> None:
    allocator = GpuLeases([100 * MIB])
    with pytest.raises(ImpossibleError, match="--compute-mode turns"):
        allocator.submit("key", Ask(compute=Compute(500)), 0)
    assert place(allocator, "all", Ask())
    assert allocator.gpus[0].guaranteed == 0


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    allocator = GpuLeases([100 * MIB])
    assert place(allocator, "half", Ask(milli_per_gpu=500))
    assert place(allocator, "whole", Ask(milli_per_gpu=1000)) is None
    assert place(allocator, "small", Ask(milli_per_gpu=100)) is None
    assert allocator.ahead("small") == 1
    assert allocator.reason("small") == "0.1 of a GPU is not free: 0.50 (50.0 MiB) free on gpu 0; 1 request ahead"
    allocator.withdraw("whole")
    assert [key for key, _ in allocator.settle(0)] == ["small"]


def test_one_tenant_does_not_stop_a_gpu() -> None:
    """It holds a little and waits for all: others overtake at first, and again when its reservation has ended."""
    allocator = GpuLeases([100 * MIB])
    allocator.submit("little", Ask(memory_bytes=2 * MIB), 0, "alice")
    allocator.submit("all", Ask(), 0, "alice")
    allocator.submit("first", Ask(milli_per_gpu=100), 0, "bob")
    assert [key for key, _ in allocator.settle(0)] == ["little", "first"]
    assert allocator.next_change(0) == 600
    allocator.submit("second", Ask(milli_per_gpu=100), 600, "bob")
    assert allocator.settle(600) == []
    with pytest.raises(NoRoomError, match="2 requests"):
        allocator.resize("first", (20 * MIB,), 600)
    assert allocator.settle(2399) == []
    assert [key for key, _ in allocator.settle(2400)] == ["second"]
    allocator.resize("first", (20 * MIB,), 2400)


def test_nobody_is_held_up_by_reservations_of_many() -> None:
    """Each of these makes a new reservation, ahead of one that has waited since the beginning."""
    allocator = GpuLeases([100 * MIB])
    allocator.place("held", LeasedGpus((0,), (50 * MIB,)), "carol")
    for i in range(10):
        allocator.submit(f"large {i}", Ask(), 0, f"tenant {i}")
    allocator.submit("small", Ask(milli_per_gpu=100), 0, "bob")
    assert allocator.settle(1799) == []
    assert [key for key, _ in allocator.settle(1800)] == ["small"]


@pytest.mark.parametrize(
    ("ask", "figures"),
    [
        (Ask(count=4), r"\b4 GPUs\b.*\b3 GPUs\b"),
        (Ask(memory_bytes=1001 * MIB), r"\b1001\.0 MiB\b.*\b1000\.0 MiB, 1000\.0 MiB\b"),
        (Ask(count=3, memory_bytes=401 * MIB), r"\b401\.0 MiB\b.*\b3 GPUs\b.*\b400\.0 MiB\b"),
        (Ask(milli_per_gpu=1), r"\b0\.001\b.*\b2\.0 MiB\b"),
        (Ask(count=3, milli_per_gpu=2), r"\b0\.002\b.*\b3 GPUs\b.*\b2\.0 MiB\b"),
    ],
    ids=str,
)
def test_what_never_fits_is_refused_at_once(ask: Ask, figures: str) -> None:
    with pytest.raises(ImpossibleError, match=figures):
        GpuLeases(SIZES).submit("key", ask, 0)


def test_the_refusal_without_a_healthy_gpu_has_the_reasons() -> None:
    allocator = GpuLeases([100 * MIB])
    allocator.gpus[0].unhealthy = "fell off the bus"
    with pytest.raises(ImpossibleError, match=r"\bgpu 0\b.*\bfell off the bus\b"):
        allocator.submit("key", Ask(), 0)
