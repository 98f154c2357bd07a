"""Installations in which programs of a test build stand in the place of ours."""

from __future__ import annotations

import stat
from pathlib import Path

from support.system import DIST


def linked_dist(folder: Path) -> Path:
    """In an empty folder: the built installation, by links."""
    for entry in DIST.iterdir():
        if entry.name != "bin":
            (folder / entry.name).symlink_to(entry)
    (folder / "bin").mkdir()
    for entry in (DIST / "bin").iterdir():
        (folder / "bin" / entry.name).symlink_to(entry)
    folder.chmod(0o755)
    return folder


def replace(dist: Path, program: Path, variable: str, value: str) -> None:
    """Have the installation start this program under the name that it has, with a variable that the appliance would not
    hand to it.
    """
    script = dist / "bin" / program.name
    script.unlink(missing_ok=True)
    script.write_text(f'#!/bin/sh\n{variable}={value} exec {program} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
