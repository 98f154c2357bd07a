"""Unpacks a Debian package without dpkg and without root: an `ar` archive with a compressed `tar` archive in it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

MAGIC: Final = b"!<arch>\n"
HEADER: Final = 60
DECOMPRESSED: Final[dict[str, Callable[[IO[bytes]], Any]]] = {"xz": lzma.open, "gz": gzip.open, "bz2": bz2.open}


class NoPackageError(Exception):
    """A file is not a Debian package that this module can unpack; the message names the file and the reason."""


class Part(io.RawIOBase):
    """A file object for the next `size` bytes of a file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.left = file, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self.file.read(min(len(view), self.left))
        view[: len(data)] = data
        self.left -= len(data)
        return len(data)


def data(file: IO[bytes]) -> tuple[str, Part]:
    """Finds the archive with the package's files. Returns its name and its content."""
    if file.read(len(MAGIC)) != MAGIC:
        raise NoPackageError("it does not begin as an ar archive does")
    while len(header := file.read(HEADER)) == HEADER:
        name, size = header[:16].decode().rstrip().rstrip("/"), int(header[48:58])
        if name.startswith("data.tar"):
            return name, Part(file, size)
        file.seek(size + size % 2, 1)
    raise NoPackageError("it has no data.tar")


def within(root: Path, member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Returns a member for extraction below `root`, with absolute links made relative; None for a device."""
    if member.isdev():
        return None
    if member.issym() and member.linkname.startswith("/"):
        depth = len(Path(member.name.removeprefix("./")).parts) - 1
        member = member.replace(linkname="../" * depth + member.linkname.lstrip("/"))
    return tarfile.tar_filter(member, str(root))


def unpack(package: Path, root: Path) -> None:
    with package.open("rb") as file:
        try:
            name, part = data(file)
            kind = name.rsplit(".", 1)[-1]
            if kind not in DECOMPRESSED:
                raise NoPackageError(f"{name} is compressed in a way that this does not read")
            with (
                DECOMPRESSED[kind](io.BufferedReader(part)) as plain,
                tarfile.open(fileobj=plain, mode="r|") as archive,
            ):
                archive.extractall(root, filter=lambda member, _: within(root, member))
        except (NoPackageError, lzma.LZMAError, tarfile.TarError, OSError, EOFError) as error:
            raise NoPackageError(f"{package}: {error}; delete it and run `make torch-bed` again") from error
