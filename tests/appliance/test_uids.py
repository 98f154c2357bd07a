"""User ids of workers: none is used twice, in an appliance or between two of one machine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from remotegpu.appliance.machine.uids import BLOCK, NoUidsError, Uids
from remotegpu.appliance.machine.uids import BLOCKS as BLOCKS_OF_A_MACHINE

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
    uids = Uids(blocks=BLOCKS[:1])
    taken = [uids.take() for _ in range(BLOCK)]
    assert taken == list(range(50_000, 50_000 + BLOCK))
    with pytest.raises(NoUidsError):
        uids.take()
    uids.give_back(50_003)
    assert uids.take() == 50_003
    uids.close()


def test_more_sessions_than_a_block_has_take_the_next_free_one() -> None:
    first, second = Uids(blocks=BLOCKS), Uids(blocks=BLOCKS)
    taken = [first.take() for _ in range(BLOCK)]
    second.take()
    with pytest.raises(NoUidsError, match=f"{BLOCK} sessions"):
        first.take()
    second.close()
    taken += [first.take() for _ in range(BLOCK)]
    assert taken == [*range(50_000, 50_000 + BLOCK), *range(51_000, 51_000 + BLOCK)]
    # Another appliance can take a further block as soon as it is empty.
    for uid in range(51_000, 51_000 + BLOCK):
        first.give_back(uid)
    third = Uids(blocks=BLOCKS)
    assert third.take() == 51_000
    first.close()
    third.close()


def test_from_a_given_base_there_are_ids_for_as_many_sessions_as_all_blocks_have() -> None:
    uids = Uids(7000)
    assert [uids.take() for _ in range(len(BLOCKS_OF_A_MACHINE) * BLOCK)][::1000] == [7000, 8000, 9000, 10_000, 11_000]
    with pytest.raises(NoUidsError):
        uids.take()


def test_with_base_zero_workers_keep_the_appliances_id() -> None:
    assert Uids(0).take() is None


def test_what_is_handed_over_stays_taken() -> None:
    before = Uids(blocks=BLOCKS)
    first = before.take()
    handed = json.loads(json.dumps(before.handed()))
    # The surviving process has the descriptors, and nothing closes them.
    handed["blocks"] = [(start, stop, os.dup(name), used) for start, stop, name, used in handed["blocks"]]
    handed["locks"] = [os.dup(lock) for lock in handed["locks"]]
    before.close()
    after, other = Uids.adopted(handed), Uids(blocks=BLOCKS)
    assert (first, after.take(), other.take()) == (BLOCKS[0], BLOCKS[0] + 1, BLOCKS[1])
    after.give_back(first)
    assert after.take() == first
    after.close()
    other.close()


def test_appliances_of_the_release_before_have_other_ids(tmp_path: Path) -> None:
    """The previous release knows only socket names: each sees the other's blocks, and it can adopt ours."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named:
        named.bind(f"\0remotegpu-uids-{BLOCKS[0]}")
        ours = Uids(blocks=BLOCKS, locks=tmp_path / "locks")
        assert ours.take() == BLOCKS[1]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as theirs, pytest.raises(OSError, match="in use"):
            theirs.bind(f"\0remotegpu-uids-{BLOCKS[1]}")
        ((start, stop, name, used),) = ours.handed()["blocks"]
        with socket.socket(fileno=os.dup(name)) as back:
            assert (back.getsockname(), start, stop, used) == (
                f"\0remotegpu-uids-{BLOCKS[1]}".encode(),
                BLOCKS[1],
                BLOCKS[1] + BLOCK,
                [BLOCKS[1]],
            )
        ours.close()


def test_what_an_appliance_of_before_handed_over_is_locked(tmp_path: Path) -> None:
    """It held a block by the name of a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named:
        state = {"blocks": [(BLOCKS[0], BLOCKS[0] + BLOCK, os.dup(named.fileno()), [BLOCKS[0]])]}
    after = Uids.adopted(state, tmp_path / "locks")
    other = Uids(blocks=BLOCKS, locks=tmp_path / "locks")
    assert (after.take(), other.take()) == (BLOCKS[0] + 1, BLOCKS[1])
    after.close()
    other.close()


def test_nobody_else_takes_a_block_or_all() -> None:
    """By the names of before, or by the files: another user does not reach them."""
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # As /run: everybody may look, and only root changes it.
        place.chmod(0o755)
        locks = place / "locks"
        for base in BLOCKS:
            name = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            name.bind(f"\0remotegpu-uids-{base}")
        first = Uids(blocks=BLOCKS, locks=locks)
        stack.callback(first.close)
        assert first.take() == BLOCKS[0]
        for base in BLOCKS:
            command = ["flock", "--nonblock", str(locks / str(base)), "true"]
            tried = subprocess.run(command, user=65534, group=65534, capture_output=True, text=True)
            assert tried.returncode != 0 and "Permission denied" in tried.stderr
        second = Uids(blocks=BLOCKS, locks=locks)
        stack.callback(second.close)
        assert second.take() == BLOCKS[1]


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
def test_a_folder_that_others_may_change_is_not_used(tmp_path: Path, mode: int) -> None:
    locks = tmp_path / "locks"
    locks.mkdir()
    locks.chmod(mode)
    with pytest.raises(NoUidsError, match=r"others than root .*--uid-base"):
        Uids(blocks=BLOCKS, locks=locks)


def test_where_nothing_can_be_written_names_keep_appliances_apart(tmp_path: Path) -> None:
    """The file system is read-only, as in some containers, or the folder above does not exist: both are the same."""
    nowhere = tmp_path / "none" / "locks"
    first, second = Uids(blocks=BLOCKS, locks=nowhere), Uids(blocks=BLOCKS, locks=nowhere)
    assert (first.take(), second.take()) == (BLOCKS[0], BLOCKS[1])
    with pytest.raises(NoUidsError, match="--uid-base"):
        Uids(blocks=BLOCKS, locks=nowhere)
    first.close()
    second.close()


def test_without_a_free_block_it_shares_none(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    all_of_them = [Uids(blocks=BLOCKS, locks=locks) for _ in BLOCKS]
    with pytest.raises(NoUidsError, match=r"have all user ids .*--uid-base"):
        Uids(blocks=BLOCKS, locks=locks)
    all_of_them.pop().close()
    Uids(blocks=BLOCKS, locks=locks).close()
    all_of_them.pop().close()
