"""Landlock: which files a session may read and write, whoever owns them, and no way into processes outside of it."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from remotegpu_offload.acceptor import syscalls

_EXECUTE, _WRITE_FILE, _READ_FILE = 1 << 0, 1 << 1, 1 << 2
_CHANGE: Final = sum(1 << bit for bit in (*range(4, 13),))  # remove and make entries of every kind
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_ALL_NETWORK: Final = 0b11
_SCOPES: Final = 0b11  # abstract sockets, signals
# A file, as a device, takes fewer rights than a folder.
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE


def restrict(hidden: Sequence[Path], writable: Sequence[Path], *, network: bool) -> bool:
    """For this process and its children, for good: reading anything but `hidden`, writing beneath `writable` only.

    `network`: whether TCP stays possible. False if this kernel has no Landlock. Raises OSError if it refuses.
    """
    abi = syscalls.landlock_abi()
    if abi == 0:
        return False
    files = _READ_FILE | _WRITE_FILE | _CHANGE
    # Before the second version, renaming into another folder is refused as such.
    files |= (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    ruleset = syscalls.landlock_create(
        files, _ALL_NETWORK if abi >= 4 and not network else 0, _SCOPES if abi >= 6 else 0
    )
    try:
        for path in beside(Path("/"), [Path(os.path.realpath(path)) for path in hidden]):
            _allow(ruleset, path, _READ_FILE)
        for path in writable:
            _allow(ruleset, path, files)
        syscalls.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)
    return True


def beside(path: Path, hidden: Sequence[Path]) -> Iterator[Path]:
    """The fewest paths that together cover all but the hidden ones. Links are left out: what they point to is covered
    where it really lies."""
    if not any(one.is_relative_to(path) for one in hidden):
        yield path
    elif path not in hidden:
        try:
            entries = sorted(path.iterdir())
        except OSError:
            return
        for entry in entries:
            if not entry.is_symlink():
                yield from beside(entry, hidden)


def _allow(ruleset: int, path: Path, files: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it went away, or we could not read it anyway
    try:
        syscalls.landlock_allow(ruleset, files if path.is_dir() else files & _OF_FILES, beneath)
    finally:
        os.close(beneath)
