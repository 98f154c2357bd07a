"""Restricts an application's files (by Landlock) and its environment variables.

Landlock binds this process and its children. This module makes the system calls itself, and does not use
`libremotegpu_sandbox.so` as an acceptor does: an application is opened by one Python file, on machines of any processor
that have nothing else of this project.
"""

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from remotegpu_offload.reverse.manifest import Permissions

_WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 1, 1 << 2, 1 << 3
_CHANGE: Final = sum(1 << bit for bit in range(4, 13))  # the rights to remove and make entries of every kind
_REFER, _TRUNCATE = 1 << 13, 1 << 14
# The system call numbers are the same on every processor.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_NO_NEW_PRIVS: Final = 38
# A file takes fewer rights than a folder.
_OF_FILES: Final = _WRITE_FILE | _READ_FILE | _TRUNCATE

# System folders that programs need. Users keep no files there.
_SYSTEM: Final = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/sys", "/dev", "/run/systemd")
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/pts", "/dev/shm")  # noqa: S108
# Variables that every application gets: for the terminal, the language, and the cache folder.
_USUAL: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TERM", "COLORTERM", "NO_COLOR", "COLUMNS",
    "LINES", "XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip


def available() -> bool:
    return sys.platform == "linux" and _version() > 0


def variables(permissions: Permissions, of: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables for the application."""
    patterns = (*_USUAL, *permissions.env)
    return {name: value for name, value in of.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def folder_of(pattern: str, base: Path) -> Path:
    """Returns the folder that contains the files of a glob: the path up to the first wildcard.

    Without a wildcard, returns the path itself.
    """
    whole = Path(os.path.normpath(base / Path(pattern).expanduser()))
    parts: list[str] = []
    for part in whole.parts:
        if any(letter in part for letter in "*?["):
            break
        parts.append(part)
    return Path(*parts)


def folders(patterns: Iterable[str], base: Path) -> list[Path]:
    """Returns the folders that contain the files of globs; paths without a wildcard are left out."""
    found = ((pattern, folder_of(pattern, base)) for pattern in patterns)
    return [folder for pattern, folder in found if any(letter in pattern for letter in "*?[")]


def confine(permissions: Permissions, base: Path, *, readable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Restricts this thread and its later children irrevocably.

    They may read system files, permitted files and `readable`, and write permitted files and `writable`. Raises OSError
    if the kernel refuses.
    """
    abi = _version()
    changing = _WRITE_FILE | _CHANGE | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    reading = _READ_FILE | _READ_FOLDER
    handled = (ctypes.c_uint64 * 1)(reading | changing)
    ruleset = _call("landlock_create_ruleset", _CREATE_RULESET, handled, ctypes.sizeof(handled), 0)
    own = {Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    read = [*map(Path, _SYSTEM), *own, *readable, *(folder_of(pattern, base) for pattern in permissions.read)]
    write = [*map(Path, _DEVICES), *writable, *(folder_of(pattern, base) for pattern in permissions.write)]
    try:
        for path in read:
            _allow(ruleset, path, reading)
        for path in write:
            _allow(ruleset, path, reading | changing)
        if _libc().prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))) < 0:
            raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
        _call("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(what: str, number: int, *arguments: Any) -> int:
    widened = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result: int = _libc().syscall(ctypes.c_long(number), *widened)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _version() -> int:
    """Returns the version of Landlock in this kernel; 0 if it has none."""
    try:
        return _call("landlock", _CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it does not exist
    try:
        rule = _PathBeneath(rights if path.is_dir() else rights & _OF_FILES, beneath)
        _call("landlock_add_rule", _ADD_RULE, ruleset, 1, ctypes.byref(rule), 0)
    finally:
        os.close(beneath)
