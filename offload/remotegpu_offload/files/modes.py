"""Modes of `open`: the flags for the file, and the buffers above it. Pure except for `Descriptor`."""

import io
import os
from collections.abc import Callable
from typing import Any

from remotegpu_offload.files.paged import READ_BUFFER, WRITE_BUFFER, PagedFile


class Descriptor(io.RawIOBase):
    """A file object for a descriptor that `os.open` returned; `close` closes the descriptor."""

    def __init__(self, file: PagedFile | None, closefd: bool, close: Callable[[int], None]) -> None:
        super().__init__()
        assert file is not None
        self.name: Any = file.fileno()
        self._descriptor = file.fileno()
        self._file = file
        self._close = close if closefd else None

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._close is not None:
                self._close(self._descriptor)

    def readable(self) -> bool:
        return self._file.readable()

    def writable(self) -> bool:
        return self._file.writable()

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer)

    def write(self, buffer: Any) -> int:
        return self._file.write(buffer)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        return self._file.truncate(size)

    def fileno(self) -> int:
        return self._file.fileno()


def flags_of(mode: str) -> int:
    """Returns the flags for a mode of `open`. Raises ValueError with the messages of `io.open`."""
    kinds = [letter for letter in mode if letter in "rwxa"]
    if set(mode) - set("rwxab+t") or len(set(mode)) != len(mode):
        raise ValueError(f"invalid mode: {mode!r}")
    if len(kinds) != 1:
        raise ValueError("must have exactly one of create/read/write/append mode")
    if "b" in mode and "t" in mode:
        raise ValueError("can't have text and binary mode at once")
    creation = {
        "r": 0,
        "w": os.O_CREAT | os.O_TRUNC,
        "x": os.O_CREAT | os.O_EXCL,
        "a": os.O_CREAT | os.O_APPEND,
    }[kinds[0]]
    access = os.O_RDWR if "+" in mode else os.O_RDONLY if kinds == ["r"] else os.O_WRONLY
    return creation | access


def wrapped(raw: Any, mode: str, buffering: int, encoding: str | None, errors: str | None, newline: str | None) -> Any:
    if buffering == 0:
        return raw
    line_buffering = buffering == 1
    size = buffering if buffering > 1 else 0
    buffered: Any
    if "+" in mode:
        buffered = io.BufferedRandom(raw, size or WRITE_BUFFER)
    elif "r" in mode:
        buffered = io.BufferedReader(raw, size or READ_BUFFER)
    else:
        buffered = io.BufferedWriter(raw, size or WRITE_BUFFER)
    if "b" in mode:
        return buffered
    text = io.TextIOWrapper(buffered, io.text_encoding(encoding, 3), errors, newline, line_buffering)
    text.mode = mode  # type: ignore[misc]
    return text
