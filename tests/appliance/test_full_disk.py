"""An appliance whose temporary folder is full or read-only: running sessions go on, and what cannot start says why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.small_disk import SmallDisk, needs_root, small_disk
from support.system import Appliance, appliance, line, started_by


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
        assert remote.cli("doctor").returncode == 0
        disk.mend(how)


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_an_appliance_that_cannot_start_says_why(tmp_path: Path, how: str) -> None:
    """All temporary folders are read-only or full, as in a pod with a read-only root."""
    needs_root()
    option = "ro" if how == "read-only" else "nr_inodes=1"
    mounts = "".join(f"mount -t tmpfs -o {option} tmpfs {folder} && " for folder in ("/var/tmp", "/tmp"))
    with started_by(f"unshare --mount sh -c '{mounts}cd /proc && exec \"$@\"' sh", tmp_path):
        it = Appliance()
    try:
        it.process.wait(timeout=60)
        said = it.log.whole()
    finally:
        it.process.kill()
    assert it.process.returncode not in (0, None)
    assert "Traceback" not in said
    assert "temporary folder" in said
    assert "TMPDIR" in said
