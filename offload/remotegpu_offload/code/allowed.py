"""The modules that the client may send: `code.page` and `code.never`, resolved once."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from remotegpu_offload.code.naming import is_ours
from remotegpu_offload.files.rules import hidden

_NOT_OURS = frozenset(("site-packages", "dist-packages", "__pycache__"))


@dataclass(frozen=True, slots=True)
class Allowed:
    """The parsed entries. Entries that look like paths are folders or files; the others are module names, possibly
    globs."""

    names: Sequence[str]
    folders: Sequence[str]  # real paths
    never_names: Sequence[str]
    never_paths: Sequence[str]  # real paths

    def module(self, name: str, origin: str | None) -> bool:
        """Returns whether this module's source may be sent. `origin` is its file or folder.

        The packages that contain a listed module may be sent too, because the module cannot be imported without them.
        """
        if self.kept(name, origin):
            return False
        if any(_name_below(name, pattern) or pattern.startswith(name + ".") for pattern in self.names):
            return True
        return origin is not None and self.path(os.path.realpath(origin))

    def kept(self, name: str, origin: str | None) -> bool:
        """Returns whether the module must stay here: `code.never` lists it, or each side has its own."""
        if is_ours(name) or any(_name_below(name, pattern) for pattern in self.never_names):
            return True
        return origin is not None and self._never(os.path.realpath(origin))

    def path(self, real: str) -> bool:
        """Returns whether a file lies in a folder of `code.page`, is not hidden, and belongs to no installed
        package."""
        if self._never(real):
            return False
        for folder in self.folders:
            if _path_below(real, folder):
                rest = real[len(folder) :].split("/")
                if not any(hidden(part) or part in _NOT_OURS for part in rest):
                    return True
        return False

    def _never(self, real: str) -> bool:
        return any(_path_below(real, path) for path in self.never_paths)


def allowed(page: Iterable[str], never: Iterable[str], base: str) -> Allowed:
    """Parses the entries of the configuration. Paths are relative to the folder `base`."""
    names, folders = _split(page, base)
    never_names, never_paths = _split(never, base)
    return Allowed(names, folders, never_names, never_paths)


def _split(entries: Iterable[str], base: str) -> tuple[list[str], list[str]]:
    names, paths = [], []
    for entry in entries:
        if "/" in entry or entry.startswith((".", "~")):
            paths.append(os.path.realpath(os.path.join(base, os.path.expanduser(entry))))
        else:
            names.append(entry)
    return names, paths


def _name_below(name: str, pattern: str) -> bool:
    """Returns whether the pattern matches the module or a package that contains it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def _path_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")
