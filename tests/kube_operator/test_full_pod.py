"""Tests that an operator with a full or read-only temporary folder still polls its appliances: it writes no file."""

from __future__ import annotations

import asyncio
import datetime
import tempfile
from pathlib import Path

import pytest
from support.kubelab import MIB, TOKEN
from support.kubenodes import Appliance
from support.small_disk import small_disk

from remotegpu.api.kubernetes import AUDIENCE, server_name
from remotegpu_operator.appliances.certificates import new_authority, new_leaf
from remotegpu_operator.appliances.inventory import Contact, Inventory, Target
from remotegpu_operator.appliances.tokens import FileToken

ADDRESS = "127.0.16.1"


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_it_asks_its_appliances(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime.now(datetime.UTC)
    old, authority = new_authority(now), new_authority(now)
    leaf = new_leaf(authority, (server_name("a"),), now)
    (tmp_path / "token").write_text(TOKEN)
    appliance = Appliance("a", ADDRESS, 1, 1024 * MIB, TOKEN)
    appliance.start(leaf.certificate.encode(), leaf.key.encode())

    async def ask() -> Contact | None:
        inventory = Inventory(FileToken(tmp_path / "token"), asyncio.Event())
        # Two bundles, as during a rotation of the authority.
        inventory.set_bundle(old.certificate)
        inventory.set_bundle(old.certificate + authority.certificate)
        inventory.set_targets([Target("a", "1", f"{ADDRESS}:7070", AUDIENCE)], inherited=False)
        await inventory.all_tried(20)
        contact = inventory.contact("a")
        await inventory.close()
        return contact

    try:
        with small_disk(1) as disk:
            disk.harm(how)
            monkeypatch.setattr(tempfile, "tempdir", str(disk.folder))
            contact = asyncio.run(ask())
            disk.mend(how)
    finally:
        appliance.stop()
    assert contact is not None
    assert (contact.problem, len(contact.report.gpus if contact.report else ())) == ("", 1)
