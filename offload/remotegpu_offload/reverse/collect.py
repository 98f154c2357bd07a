"""Makes the manifest of an application's folder: which of its files are sent, and which files they import."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from remotegpu_offload.code.scan import related
from remotegpu_offload.files.opening import open_regular
from remotegpu_offload.reverse.errors import ReverseError
from remotegpu_offload.reverse.manifest import MOST_FILES, NAME, File, Manifest, Permissions

ENTRIES: Final = ("__main__.py", "main.py", "app.py")
_NEVER: Final = frozenset(("__pycache__", "node_modules"))
# Identifies the content of a file: real path, size, modification time in nanoseconds.
Stamp = tuple[str, int, int]


def collect(
    folder: Path,
    name: str,
    *,
    entry: str = "",
    python: str = "3.11",
    permissions: Permissions | None = None,
    requirements: tuple[str, ...] = (),
    kept: Callable[[str], bool] = lambda _path: False,
    known: dict[Stamp, str] | None = None,
) -> Manifest:
    """Returns the manifest of a folder's current content, with `issued` 0.

    Leaves out hidden files, caches, links, and files for which `kept` is true. `known` caches hashes between calls.
    Raises ReverseError.
    """
    if not NAME.fullmatch(name):
        raise ReverseError(f"{name!r} is no name: use lower-case letters, digits, dots and dashes, at most 63")
    if not folder.is_dir():
        raise ReverseError(f"{folder} is no folder: name the one with the application")
    hashes = {}
    for path in _files(folder):
        if not kept(path):
            hashes[path] = _hash(folder, path, {} if known is None else known)
        if len(hashes) > MOST_FILES:
            raise ReverseError(f"{folder} has more than {MOST_FILES} files: name the folder of one application")
    entry = entry or next((one for one in ENTRIES if one in hashes), "")
    if entry not in hashes:
        what = f"no file {entry}" if entry else f"none of {', '.join(ENTRIES)}"
        raise ReverseError(f"{folder} has {what} that travels: name the program by --entry, relative to the folder")
    files = {path: File(digest, size, tuple(_imports(folder, path, hashes))) for path, (digest, size) in hashes.items()}
    return Manifest(name, entry, python, 0, permissions or Permissions(), requirements, files)


def module_of(path: str) -> tuple[str, bool]:
    """Returns the name under which a file is imported, and whether it is a package: "a/__init__.py" is package "a"."""
    stem = path.removesuffix(".py").replace("/", ".")
    return (stem.removesuffix(".__init__"), True) if stem.endswith(".__init__") else (stem, False)


def _files(folder: Path) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each not in _NEVER)
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and not path.is_symlink() and path.is_file():
                yield path.relative_to(folder).as_posix()


def _hash(folder: Path, path: str, known: dict[Stamp, str]) -> tuple[str, int]:
    real = os.path.realpath(folder / path)
    with os.fdopen(open_regular(real, os.O_RDONLY), "rb") as file:
        found = os.fstat(file.fileno())
        stamp = real, found.st_size, found.st_mtime_ns
        if stamp not in known:
            known[stamp] = hashlib.file_digest(file, "sha256").hexdigest()
    return known[stamp], found.st_size


def _imports(folder: Path, path: str, files: Mapping[str, object]) -> Iterator[str]:
    if not path.endswith(".py"):
        return
    name, is_package = module_of(path)
    package = name if is_package else name.rpartition(".")[0]
    for module in related((folder / path).read_bytes(), package):
        stem = module.replace(".", "/")
        for candidate in (f"{stem}/__init__.py", f"{stem}.py"):
            if candidate in files and candidate != path:
                yield candidate
