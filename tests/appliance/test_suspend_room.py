"""Room for what suspended sessions had in a GPU's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from remotegpu.appliance.images import ImageRoom, Images, NoRoomError

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
    # Without tokens nobody has a name, and all have everything.
    whole = images.create(6 * MIB, ""), images.create(2 * MIB, "")
    for each in whole:
        each.close()


def test_what_is_closed_twice_counts_once() -> None:
    images = Images(ImageRoom(4 * MIB))
    image = images.create(3 * MIB, "team")
    image.close()
    image.close()
    images.create(3 * MIB, "team").close()
