"""Results of `os.scandir` for a folder of the client. The entries already contain their status."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Entry:
    """An entry of a folder of the client, with the interface of `os.DirEntry`."""

    __slots__ = ("_find", "_status", "name", "path")

    def __init__(self, folder: Any, name: str, status: os.stat_result, find: Callable[..., os.stat_result]) -> None:
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path: Any = os.path.join(folder, self.name)
        self._status = status
        self._find = find

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._find(self.path) if follow_symlinks and self.is_symlink() else self._status

    def inode(self) -> int:
        return self._status.st_ino

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._status.st_mode)

    def is_junction(self) -> bool:
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def _is(self, kind: Callable[[int], bool], follow: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow).st_mode)
        except OSError:
            return False

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class Scan:
    """An iterator over entries, with the interface of the result of `os.scandir`."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> "Scan":
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
