"""Which appliances GPUs are taken from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remotegpu.api.quantities import Ask
from remotegpu.cli.run.command import parse_ask
from remotegpu.cli.run.placement import possible, spread
from remotegpu.rpc import pb


def appliance(*free: int, draining: bool = False, healthy: bool = True) -> pb.InventoryReply:
    """GPUs of 100 bytes with so much free."""
    gpus = [pb.Gpu(shareable_bytes=100, leased_bytes=100 - left, healthy=healthy) for left in free]
    return pb.InventoryReply(gpus=gpus, draining=draining)


def test_gpus_are_spread_evenly() -> None:
    assert spread([appliance(100, 100), appliance(100, 100)], Ask(count=2)) == [1, 1]
    assert spread([appliance(100, 100), appliance(100, 100)], Ask(count=3)) == [2, 1]
    assert spread([appliance(100), appliance(100, 100, 100)], Ask(count=4)) == [1, 3]


def test_more_is_taken_where_more_is_free() -> None:
    assert spread([appliance(100), appliance(100, 100)], Ask(count=1)) == [0, 1]


def test_what_does_not_fit_is_not_taken() -> None:
    assert spread([appliance(50), appliance(24, 25)], Ask(count=2, milli_per_gpu=250)) == [1, 1]
    assert spread([appliance(50), appliance(24, 24)], Ask(count=2, milli_per_gpu=250)) is None
    assert spread([appliance(50, draining=True), appliance(50, healthy=False)], Ask(milli_per_gpu=250)) is None


def test_possible_looks_at_what_is_leased_as_if_it_were_free() -> None:
    assert possible([appliance(0), appliance(0)], Ask(count=2))
    assert not possible([appliance(0), appliance(0, healthy=False)], Ask(count=2))
    assert not possible([appliance(0)], Ask(memory_bytes=101))


@given(st.lists(st.lists(st.integers(0, 100), max_size=4), min_size=1, max_size=4), st.integers(1, 8))
def test_a_spread_is_as_asked_and_fits(free: list[list[int]], count: int) -> None:
    counts = spread([appliance(*each) for each in free], Ask(count=count, milli_per_gpu=500))
    fitting = [sum(left >= 50 for left in each) for each in free]
    if sum(fitting) < count:
        assert counts is None
        return
    assert counts is not None
    assert sum(counts) == count
    assert all(taken <= there for taken, there in zip(counts, fitting, strict=True))
    full = [taken == there for taken, there in zip(counts, fitting, strict=True)]
    open_counts = [taken for taken, is_full in zip(counts, full, strict=True) if not is_full]
    assert all(taken >= max(counts) - 1 for taken in open_counts), "evenly, as far as there is room"


def test_options_of_run() -> None:
    assert parse_ask(1, None, None) == Ask(1, 1000, 0)
    assert parse_ask(2, "0.25", None) == Ask(2, 250, 0)
    assert parse_ask(1, "2", None) == Ask(2, 1000, 0)
    assert parse_ask(2, "1", None) == Ask(2, 1000, 0)
    assert parse_ask(3, None, "1GiB") == Ask(3, 0, 1 << 30)
