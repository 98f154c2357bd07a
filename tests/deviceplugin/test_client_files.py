"""The client's files on a node: whole or not there, and never taken from a pod that has them."""

from __future__ import annotations

import base64
import json
import logging
import os
from pathlib import Path

import pytest

from remotegpu_deviceplugin import files
from remotegpu_deviceplugin.injection import answer


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libcuda.so.1").write_text("one")
    (folder / "lib" / "libcuda.so").symlink_to("libcuda.so.1")
    return folder


def checkpoint(path: Path, *versions: Path) -> Path:
    entries = [
        {"PodUID": "u", "ResourceName": "remotegpu/milli", "AllocResp": base64.b64encode(told).decode()}
        for told in (
            answer(version, path.with_name("local"), keep_ptx=False).SerializeToString() for version in versions
        )
    ]
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": entries or None}, "Checksum": 1}))
    return path


def test_the_copy_is_the_source(source: Path, tmp_path: Path) -> None:
    version = files.install(source, tmp_path / "host")
    assert (version / "lib" / "libcuda.so.1").read_text() == "one"
    assert (version / "lib" / "libcuda.so").readlink() == Path("libcuda.so.1")
    assert version.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in (tmp_path / "host").iterdir()] == [version.name]


def test_a_new_release_lies_beside_the_old_and_the_same_one_is_left_alone(source: Path, tmp_path: Path) -> None:
    host = tmp_path / "host"
    first = files.install(source, host)
    inode = (first / "lib" / "libcuda.so.1").stat().st_ino
    assert files.install(source, host) == first
    assert (first / "lib" / "libcuda.so.1").stat().st_ino == inode
    (source / "lib" / "libcuda.so.1").write_text("two")
    second = files.install(source, host)
    assert second != first
    assert (first / "lib" / "libcuda.so.1").read_text() == "one"


def test_what_a_crash_cut_short_is_made_whole(source: Path, tmp_path: Path) -> None:
    host = tmp_path / "host"
    version = files.install(source, host)
    (version / "lib" / "libcuda.so.1").write_text("o")
    (host / ".new-abc").mkdir()
    os.utime(host / ".new-abc", (0, 0))
    assert files.install(source, host) == version
    assert (version / "lib" / "libcuda.so.1").read_text() == "one"
    assert [path.name for path in host.iterdir()] == [version.name]


def test_only_versions_that_no_pod_was_given_are_removed(source: Path, tmp_path: Path) -> None:
    host, versions = tmp_path / "host", []
    for content in ("one", "two", "three"):
        (source / "lib" / "libcuda.so.1").write_text(content)
        versions.append(files.install(source, host))
    kept = host / "pools.json"
    kept.write_text("{}")
    used, unused, current = versions
    files.remove_unused(host, current, checkpoint(tmp_path / "checkpoint", used))
    assert set(host.iterdir()) == {used, current, kept}
    assert not unused.exists()
    files.remove_unused(host, current, checkpoint(tmp_path / "checkpoint"))
    assert set(host.iterdir()) == {current, kept}


@pytest.mark.parametrize(
    "content",
    [None, "", "[]", '{"Data": 3}', '{"Data": {"PodDeviceEntries": [{}]}}',
     '{"Data": {"PodDeviceEntries": [{"AllocResp": "////"}]}}'],
)  # fmt: skip
def test_nothing_is_removed_where_the_kubelets_memory_is_not_understood(
    source: Path, tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    host = tmp_path / "host"
    old = files.install(source, host)
    (source / "lib" / "libcuda.so.1").write_text("two")
    new = files.install(source, host)
    path = tmp_path / "checkpoint"
    if content is not None:
        path.write_text(content)
    with caplog.at_level(logging.WARNING):
        files.remove_unused(host, new, path)
    assert old.exists()
    assert "old versions of the client's files stay" in caplog.text
