"""Room for what suspended sessions had in a GPU's memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stand_in import StandIn, make_dist

from remotegpu.api.quantities import Ask
from remotegpu.appliance.machine.images import ImageRoom, Images, NoRoomError

MIB = 1 << 20


def test_one_tenant_leaves_a_quarter_to_others(tmp_path: Path) -> None:
    images = Images(ImageRoom(6 * MIB, tmp_path, 2 * MIB))
    first, second = images.create(4 * MIB, "team-a"), images.create(2 * MIB, "team-a")
    with pytest.raises(NoRoomError, match=r"team-a has 6.0 MiB of the 6.0 MiB"):
        images.create(1, "team-a")
    other = images.create(2 * MIB, "team-b")
    with pytest.raises(NoRoomError, match=r"0 B of 6.0 MiB in memory \(--suspend-memory\)"):
        images.create(1, "team-c")
    second.trim(MIB)
    images.create(MIB, "team-a").close()
    for each in (first, second, other):
        each.close()
    # Without tokens the tenant's name is empty, and it may use the whole room.
    whole = images.create(6 * MIB, ""), images.create(2 * MIB, "")
    for each in whole:
        each.close()


def test_what_is_closed_twice_counts_once() -> None:
    images = Images(ImageRoom(4 * MIB))
    image = images.create(3 * MIB, "team")
    image.close()
    image.close()
    images.create(3 * MIB, "team").close()


def test_a_worker_that_makes_its_file_on_a_disk_larger_ends(tmp_path: Path) -> None:
    """Its tenant has taken it over: it could fill the disk."""
    files = tmp_path / "images"
    files.mkdir()
    options = ("--suspend-memory", "1MiB", "--suspend-disk", f"{files}=256MiB", "--grace", "60s")
    with StandIn(make_dist(tmp_path / "dist"), *options) as appliance:
        greedy, modest = (appliance.lease(Ask(memory_bytes=64 * MIB)) for _ in range(2))
        sessions = [lease.session() for lease in (greedy, modest)]
        for session in sessions:
            session.grant(32 * MIB)
        sessions[0].ask(f"overfill {8 * MIB}")
        for lease in (modest, greedy):
            with appliance.client.suspend_lease(lease.granted.lease_id) as progress:
                list(progress)
        assert "its image has 40.0 MiB and was given 32.0 MiB" in sessions[0].rest()
        assert sessions[1].ask("identity")["cwd"] == "/"
