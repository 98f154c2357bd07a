"""The appliance's folder: what other users can read, and that it goes even if the appliance cannot remove it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stand_in import StandIn

from remotegpu.appliance.machine.staging import Staging, sweep

SECONDS = 60.0
# Another appliance, as far as its folder is concerned; it ends with its input.
OWNER = """
import sys
from remotegpu.appliance.machine.staging import Staging

folder = Staging().folder("sessions")
(folder / "deep").mkdir()
(folder / "deep" / "data").write_text("x")
(folder / "away").symlink_to(sys.argv[1])
print(folder.parent, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this test and its processes; its name is short enough for a socket in it."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@contextlib.contextmanager
def owner(outside: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has an appliance's folder, and the folder; a link in it leads to `outside`."""
    command = [sys.executable, "-c", OWNER, str(outside)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        try:
            assert select.select([process.stdout], [], [], SECONDS)[0]
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()
            process.wait(SECONDS)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's workers have another uid")
def test_what_another_uid_cannot_read_is_copied(tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir(mode=0o700)
    program = tmp_path / "hidden" / "program"
    program.write_text("content")
    staging = Staging()
    copy = staging.readable(program)
    assert copy != program
    assert copy.read_text() == "content"
    assert copy.stat().st_mode & 0o555 == 0o555
    assert staging.readable(Path("/bin/sh")) == Path("/bin/sh")
    staging.remove()
    assert not copy.parent.parent.exists()


def test_the_folder_of_a_killed_appliance_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    with owner(outside) as (killed, left), owner(outside) as (_, alive):
        sweep()
        assert (left / "sessions" / "deep" / "data").exists(), "its owner lives"
        killed.kill()
        killed.wait(SECONDS)
        sweep()
        assert not left.exists()
        assert (alive / "sessions" / "deep" / "data").read_text() == "x"
    assert (outside / "precious").read_text() == "kept", "links in it are not followed"


def test_our_own_folder_is_not_swept() -> None:
    staging = Staging()
    folder = staging.folder("offload")
    sweep()
    assert folder.is_dir() and staging.folder("offload") == folder
    staging.remove()
    assert not folder.exists()


def test_folders_of_others_stay(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    (temporary / "remotegpu-appliance-link").symlink_to(outside)
    (temporary / "remotegpu-appliance-dangling").symlink_to(tmp_path / "nowhere")
    (temporary / "remotegpu-appliance-file").write_text("a file")
    (temporary / "remotegpu-offload-other").mkdir()
    before = sorted(temporary.iterdir())
    sweep()
    assert sorted(temporary.iterdir()) == before and (outside / "precious").exists()
    # Of another user: we are not the user who made it.
    (temporary / "remotegpu-appliance-foreign").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        sweep()
    assert (temporary / "remotegpu-appliance-foreign").is_dir()
    sweep()
    assert sorted(temporary.iterdir()) == before


def test_an_appliance_removes_what_a_killed_one_left(dist: Path, tmp_path: Path) -> None:
    with owner(tmp_path) as (killed, left), owner(tmp_path) as (_, alive):
        killed.kill()
        killed.wait(SECONDS)
        with StandIn(dist) as appliance:
            assert not left.exists() and alive.is_dir()
            assert f"removed {left}" in appliance.log
