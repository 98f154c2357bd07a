"""User ids of workers: none is used twice, in an appliance or between two of one machine."""

from __future__ import annotations

import os

import pytest

from remotegpu.appliance.uids import BLOCK, NoUidsError, Uids

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give workers a user id of their own")
# No appliance of this machine has these.
BLOCKS = (50_000, 51_000)


def test_two_appliances_choose_different_ids_and_leave_them_behind() -> None:
    first, second = Uids(blocks=BLOCKS), Uids(blocks=BLOCKS)
    assert [first.take(), first.take(), second.take()] == [50_000, 50_001, 51_000]
    first.close()
    third = Uids(blocks=BLOCKS)
    assert third.take() == 50_000
    second.close()
    third.close()


def test_an_id_is_handed_out_again_only_when_it_came_back() -> None:
    uids = Uids(7000)
    taken = [uids.take() for _ in range(BLOCK)]
    assert taken == list(range(7000, 7000 + BLOCK))
    with pytest.raises(NoUidsError):
        uids.take()
    uids.give_back(7003)
    assert uids.take() == 7003


def test_with_base_zero_workers_keep_the_appliances_id() -> None:
    assert Uids(0).take() is None
