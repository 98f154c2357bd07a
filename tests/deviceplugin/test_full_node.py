"""A node whose disk is full or read-only: what is there stays and serves, and what is not there is a reason."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.plugin_node import Node as PluginNode
from support.plugin_node import set_pool
from support.small_disk import SmallDisk, small_disk

from remotegpu.api.kubernetes import LOCAL, MILLI
from remotegpu_deviceplugin import files
from remotegpu_deviceplugin._generated import deviceplugin_pb2 as messages
from remotegpu_deviceplugin.devices import Pools
from remotegpu_deviceplugin.node import MEMORY, Node


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk(4) as disk:
        yield disk


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "libcuda.so.1").write_bytes(bytes(1 << 20))
    return folder


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_files_that_are_there_serve(disk: SmallDisk, source: Path, how: str) -> None:
    version = files.install(source, disk.folder)
    disk.harm(how)
    assert files.install(source, disk.folder) == version


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_new_version_that_has_no_room_leaves_nothing_and_the_old_one(disk: SmallDisk, source: Path, how: str) -> None:
    """A plugin that fails is started again and again: it must not make a full disk fuller."""
    old = files.install(source, disk.folder)
    (source / "libcuda.so.1").write_bytes(b"\1" * (2 << 20))
    (source / "more").write_bytes(b"\1" * (2 << 20))
    if how == "read-only":
        disk.read_only()
    for _ in range(3):
        with pytest.raises(files.InstallError, match=str(disk.folder)):
            files.install(source, disk.folder)
    assert [path.name for path in disk.folder.iterdir()] == [old.name]
    assert (old / "libcuda.so.1").read_bytes() == bytes(1 << 20)
    disk.writable()
    (source / "more").unlink()
    assert (files.install(source, disk.folder) / "libcuda.so.1").read_bytes() == b"\1" * (2 << 20)


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_what_is_learned_is_told_though_it_cannot_be_kept(
    disk: SmallDisk, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def learn() -> list[int]:
        node = Node(disk.folder / "version", None, disk.folder / MEMORY)
        await node.start()
        await node.learn(Pools(1000, software=True))
        disk.harm(how)
        await node.learn(Pools(2000, software=True))
        return [plugin.count or 0 for plugin in node.plugins]

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(learn())[0] == 4000
    assert MEMORY in caplog.text
    disk.mend(how)
    assert [path.name for path in disk.folder.iterdir()] == [MEMORY], "nothing half written is left"
    again = Node(disk.folder / "version", None, disk.folder / MEMORY)
    asyncio.run(again.start())
    assert again.plugins[0].count == 2000, "the last that could be kept"


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_plugin_that_starts_there_serves(pool: ApiServer, node: PluginNode, disk: SmallDisk, how: str) -> None:
    """It learns that there is more, and gives a container the files that are there."""
    node.files = disk.folder
    with node.run(pool.kubeconfig):
        node.heard(MILLI, 6000)
    disk.harm(how)
    with node.run(pool.kubeconfig) as process:
        set_pool(pool, "plugin", 4000)
        node.heard(MILLI, 8000)
        request = messages.AllocateRequest(container_requests=[messages.ContainerAllocateRequest(devices_ids=["0"])])
        (given,) = node.kubelet.plugin(MILLI).Allocate(request).container_responses
        paths = {mount.container_path: Path(mount.host_path) for mount in given.mounts}
        assert paths.pop(LOCAL) == node.files.with_name("local")
        (version,) = {path.relative_to(node.files).parts[0] for path in paths.values()}
        assert (node.files / version / "lib" / "libcuda.so.1").read_text() == "first"
        node.logged("no other plugin can hand over to this one")
        assert process.poll() is None
    assert "Traceback" not in node.log.read_text()
