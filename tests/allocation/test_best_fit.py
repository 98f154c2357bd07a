"""The chosen GPUs against all possible choices."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from remotegpu.api.claims import Placement
from remotegpu_operator.allocation.fit import Fit, choose

# (appliance, bytes left) of up to eight GPUs; few values, so that there are ties.
FITS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=8).map(
    lambda pairs: [Fit(left, appliance, slot) for slot, (appliance, left) in enumerate(sorted(pairs))]
)


def appliances(fits: tuple[Fit, ...] | list[Fit]) -> int:
    return len({fit.appliance for fit in fits})


def left(fits: tuple[Fit, ...] | list[Fit]) -> int:
    return sum(fit.left for fit in fits)


@given(fits=FITS, count=st.integers(1, 5))
def test_pack_leaves_the_least_on_the_fewest_appliances(fits: list[Fit], count: int) -> None:
    chosen = choose(fits, count, Placement.PACK)
    possible = list(combinations(fits, count))
    assert (chosen is None) == (not possible)
    if chosen is not None:
        assert len(set(chosen)) == count and set(chosen) <= set(fits)
        fewest = min(map(appliances, possible))
        assert appliances(chosen) == fewest
        if fewest == 1:
            assert left(chosen) == min(left(other) for other in possible if appliances(other) == 1)
        assert choose(reversed(fits), count, Placement.PACK) == chosen


@given(fits=FITS, count=st.integers(1, 5))
def test_spread_takes_the_emptiest_on_the_most_appliances(fits: list[Fit], count: int) -> None:
    chosen = choose(fits, count, Placement.SPREAD)
    possible = list(combinations(fits, count))
    assert (chosen is None) == (not possible)
    if chosen is not None:
        assert len(set(chosen)) == count and set(chosen) <= set(fits)
        assert appliances(chosen) == max(map(appliances, possible))
        if appliances(fits) >= count:
            assert left(chosen) == max(left(other) for other in possible if appliances(other) == count)
        assert choose(reversed(fits), count, Placement.SPREAD) == chosen


def test_a_spread_claim_avoids_an_appliance_that_is_in_use() -> None:
    """Among equally empty GPUs, the one on the emptier appliance wins."""
    fits = [Fit(5, "a", 0), Fit(1, "a", 1), Fit(5, "b", 2), Fit(5, "b", 3)]
    assert choose(fits, 1, Placement.SPREAD) == [fits[2]]
