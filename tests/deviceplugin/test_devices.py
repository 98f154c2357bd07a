"""The constant that every node advertises, and the kubelet's limit on how it is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotegpu_deviceplugin.devices import MESSAGE_LIMIT, MOST_DEVICES, Pools, fitting, listing


def pool(milli: int | None, backend: str = "software") -> dict[str, object]:
    status = {} if milli is None else {"status": {"total": {"milli": milli}}}
    return {"spec": {"backend": backend}, **status}


def test_a_node_advertises_twice_the_sum_of_all_pools() -> None:
    assert Pools.from_objects([pool(2000), pool(None), pool(3000, "cuda")]).wanted == 10_000


@pytest.mark.parametrize(
    ("pools", "software"),
    [([], True), ([pool(1)], True), ([pool(1), pool(1, "cuda")], False), ([{"spec": {}}], True)],
)
def test_machine_code_is_kept_where_any_pool_executes_it(pools: list[dict[str, object]], software: bool) -> None:
    assert Pools.from_objects(pools).software is software


@given(st.lists(st.integers(0, 1 << 40), min_size=1))
def test_the_figure_never_gets_smaller(totals: list[int]) -> None:
    known = None
    for total in totals:
        known = Pools(total, software=True).since(known)
    assert known is not None
    assert known.milli == max(totals)


def test_the_kind_of_the_pools_is_always_the_newest() -> None:
    assert Pools(1, software=False).since(Pools(5, software=True)) == Pools(5, software=False)


def test_ids_are_short_distinct_and_healthy() -> None:
    devices = listing(2000).devices
    assert {device.health for device in devices} == {"Healthy"}
    assert len({device.ID for device in devices}) == 2000
    assert max(len(device.ID) for device in devices) == 4


def test_the_largest_list_fits_the_kubelets_message() -> None:
    assert listing(fitting(10**12)).ByteSize() <= MESSAGE_LIMIT
    # A hundred GPUs need no cut.
    assert fitting(2 * 100_000) == 200_000 < MOST_DEVICES
