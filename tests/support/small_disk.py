"""Mounts a small file system for a test, which can be made full or read-only. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filling = folder / "filling"

    def fill(self) -> None:
        """Writes until no byte and no file fits any more."""
        with contextlib.suppress(OSError), self._filling.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with contextlib.suppress(OSError):
            for number in range(1 << 20):
                (self.folder / f"filling-{number}").touch()

    def make_room(self) -> None:
        for file in self.folder.glob("filling*"):
            file.unlink()

    def read_only(self) -> None:
        self._remount("ro")

    def writable(self) -> None:
        self._remount("rw")

    def harm(self, how: str) -> None:
        self.fill() if how == "full" else self.read_only()

    def mend(self, how: str) -> None:
        self.make_room() if how == "full" else self.writable()

    def _remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.folder], check=True)


def needs_root() -> None:
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs root to mount a file system")


@contextlib.contextmanager
def small_disk(mib: int) -> Iterator[SmallDisk]:
    needs_root()
    # A short path, since sockets are created in it.
    folder = Path(tempfile.mkdtemp(prefix="rg-", dir="/tmp"))
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,nr_inodes=1000", "tmpfs", folder], check=True)
        try:
            yield SmallDisk(folder)
        finally:
            # Lazy, since a process may still have a file open there.
            subprocess.run(["umount", "--lazy", folder], check=True)
    finally:
        folder.rmdir()
