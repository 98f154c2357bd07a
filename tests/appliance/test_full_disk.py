"""An appliance whose temporary folder is full or read-only: what runs goes on, and what cannot start says why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import system
from support.small_disk import SmallDisk, small_disk
from support.system import REMOTEGPU, Appliance, appliance, line


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisk]:
    with small_disk(64) as disk:
        monkeypatch.setenv("TMPDIR", str(disk.folder))
        yield disk


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_sessions_run_and_start(disk: SmallDisk, how: str) -> None:
    with appliance() as remote, remote.start("endless_calls.py", "3") as running:
        assert line(running) == "ready"
        disk.harm(how)
        done = remote.run("vector_add.py")
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
        assert line(running) == "finished"
        assert remote.cli("health").returncode == 0
        disk.mend(how)


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_an_appliance_that_cannot_start_says_why(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a pod whose root is read-only: there is no other folder for temporary files."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system")
    option = "ro" if how == "read-only" else "nr_inodes=1"
    mounts = "".join(f"mount -t tmpfs -o {option} tmpfs {folder} && " for folder in ("/var/tmp", "/tmp"))
    launcher = tmp_path / "remotegpu"
    launcher.write_text(
        f'#!/bin/sh\nexec unshare --mount sh -c \'{mounts}cd /proc && exec {REMOTEGPU} "$@"\' sh "$@"\n'
    )
    launcher.chmod(0o755)
    monkeypatch.setattr(system, "REMOTEGPU", str(launcher))
    it = Appliance()
    try:
        _, said = it.process.communicate(timeout=60)
    finally:
        it.process.kill()
    assert it.process.returncode not in (0, None)
    assert "Traceback" not in said
    assert "temporary folder" in said
    assert "TMPDIR" in said
