"""Creates installations in which programs of a test build replace the usual ones."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

from support.system import DIST


def linked_dist(folder: Path) -> Path:
    """Fills an empty folder with links to the built installation."""
    for entry in DIST.iterdir():
        if entry.name != "bin":
            (folder / entry.name).symlink_to(entry)
    (folder / "bin").mkdir()
    for entry in (DIST / "bin").iterdir():
        (folder / "bin" / entry.name).symlink_to(entry)
    folder.chmod(0o755)
    return folder


def replace(dist: Path, program: Path, variable: str, value: str) -> None:
    """Replaces the program of the same name by `program`, with a variable that the appliance would remove."""
    script = dist / "bin" / program.name
    script.unlink(missing_ok=True)
    script.write_text(f'#!/bin/sh\n{variable}={value} exec {program} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def replace_library(dist: Path, folder: str, library: Path) -> None:
    """Replaces the `libcuda.so.1` in a folder, under all of its names, by `library`."""
    own, place = DIST / folder, dist / folder
    place.unlink()
    place.mkdir()
    for entry in own.iterdir():
        is_it = entry.resolve() == (own / "libcuda.so.1").resolve()
        if entry.name != "libcuda.so.1":
            (place / entry.name).symlink_to("libcuda.so.1" if is_it else entry)
    shutil.copy(library, place / "libcuda.so.1")
