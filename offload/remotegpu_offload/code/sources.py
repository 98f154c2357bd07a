"""Finds the client's modules as files, with their source and their packages' content, without importing them."""

import hashlib
import importlib.machinery
import os
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from typing import Any, Final, Literal

from remotegpu_offload.code.naming import MAIN_ALIAS
from remotegpu_offload.files.opening import read_regular

LARGEST_SOURCE: Final = 64 << 20
# Marks finders that only observe the results of other finders, and that are skipped here.
WATCHER: Final = "remotegpu_watches"
_COMPILED: Final = tuple(importlib.machinery.EXTENSION_SUFFIXES)


@dataclass(frozen=True, slots=True)
class Main:
    """The program's main module. `package` is "" unless the program was started by `python -m package.module`."""

    path: str
    name: str = ""  # the name that an import would use: "package.module"
    package: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """One module. `origin` is None for namespace packages, which have only folders."""

    name: str
    origin: str | None
    folders: tuple[str, ...] | None  # None: not a package
    package: str  # the package from which relative imports start
    text: bytes = b""
    stamp: tuple[int, int] = (0, 0)  # size, mtime_ns

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text).hexdigest()


class NotSourceError(ImportError):
    """The module exists, but it has no source that could be sent. The message gives a remedy."""


def find_spec(name: str, path: Sequence[str] | None = None) -> ModuleSpec | None:
    """Finds the spec from which this process would import the module. For a module outside of packages, also searches
    `path`.

    Does not import the packages that contain the module. If one is imported already, its own spec is used.
    """
    loaded = sys.modules.get(name)
    spec: ModuleSpec | None = getattr(loaded, "__spec__", None)
    if spec is not None:
        return spec
    parent = name.rpartition(".")[0]
    if not parent:
        return _ask_finders(name, None) or (_ask_finders(name, path) if path else None)
    around = find_spec(parent, path)
    if around is None or around.submodule_search_locations is None:
        return None
    return _ask_finders(name, list(around.submodule_search_locations))


def load(name: str, spec: ModuleSpec) -> Source:
    """Returns the source of a found module. Raises NotSourceError, OSError."""
    folders = None if spec.submodule_search_locations is None else tuple(map(str, spec.submodule_search_locations))
    if spec.origin is None or spec.origin == "namespace" or spec.loader is None:
        if folders is None:
            raise NotSourceError(f"{name} has no source file: the acceptor cannot import it")
        return Source(name, None, folders, name)
    top = name.partition(".")[0]
    package = name if folders is not None else name.rpartition(".")[0]
    if spec.origin.endswith(_COMPILED):
        raise NotSourceError(
            f"{name} is compiled ({spec.origin}), and machine code is not sent: "
            f"install {top} in the acceptor's environment"
        )
    if spec.origin.endswith(".pyc") or spec.origin in ("built-in", "frozen"):
        raise NotSourceError(f"{name} has no source ({spec.origin}): install {top} in the acceptor's environment")
    try:
        real = os.path.realpath(spec.origin)
        text = read_regular(real, LARGEST_SOURCE)
        stamp = stamp_of(real)
    except (FileNotFoundError, NotADirectoryError):
        # The module is, for example, inside a zip file.
        source = getattr(spec.loader, "get_source", lambda _name: None)(name)
        if source is None:
            raise
        text, stamp = source.encode(), (0, 0)
    return Source(name, spec.origin, folders, package, text, stamp)


def load_main(main: Main) -> Source:
    """Returns the main module's source, under the name `MAIN_ALIAS`. Raises OSError."""
    real = os.path.realpath(main.path)
    return Source(MAIN_ALIAS, main.path, None, main.package, read_regular(real, LARGEST_SOURCE), stamp_of(real))


def stamp_of(real: str) -> tuple[int, int]:
    """Returns size and modification time, which change with the file; (0, 0) if the file does not exist."""
    try:
        found = os.stat(real)
    except OSError:
        return (0, 0)
    return found.st_size, found.st_mtime_ns


# The kind of a name in a folder. A folder without `__init__.py` can be imported, but is not listed as a module.
Kind = Literal["module", "package", "folder"]


def submodules(folders: Sequence[str]) -> dict[str, Kind]:
    """Returns the modules that can be imported from these folders, including compiled ones."""
    return {name: _kind(path) for folder in reversed(folders) for name, path in sorted(_entries(folder))}


def top_level(folders: Sequence[str]) -> dict[str, Kind]:
    """Returns the modules that can be imported from folders on the search path.

    A folder counts as a package only if it holds sources and is not a virtual environment.
    """
    return {
        name: _kind(path)
        for folder in reversed(folders)
        for name, path in sorted(_entries(folder))
        if path is None or (_holds_sources(path, 2) and not os.path.exists(os.path.join(path, "pyvenv.cfg")))
    }


def editable() -> dict[str, str]:
    """Returns names and paths of packages that setuptools installed as editable with its own finder."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        mapping = getattr(module, "MAPPING", None) if name.startswith("__editable__") else None
        if isinstance(mapping, dict):
            found |= {str(key): str(value) for key, value in mapping.items()}
    return found


def this_main() -> Main | None:
    """Returns the main module of this process; None if it is not a file, as in a notebook."""
    module = sys.modules.get("__main__")
    path = getattr(module, "__file__", None)
    if not isinstance(module, types.ModuleType) or path is None or not os.path.isfile(path):
        return None
    spec = module.__spec__
    return Main(os.path.abspath(path), spec.name if spec else "", module.__package__ or "")


def _ask_finders(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        # The other side has the built-in modules too.
        if finder in (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter):
            continue
        ask: Any = getattr(finder, "find_spec", None)
        if ask is None or getattr(finder, WATCHER, False):
            continue
        spec: ModuleSpec | None = ask(name, path, None)
        if spec is not None:
            return spec
    return None


def _entries(folder: str) -> Iterator[tuple[str, str | None]]:
    """Yields the names of modules in a folder; for a package also the path of its folder, otherwise None."""
    try:
        with os.scandir(folder or ".") as found:
            for entry in found:
                stem, _, suffix = entry.name.partition(".")
                if not stem.isidentifier() or stem in ("__pycache__", "__init__"):
                    continue
                if not suffix and entry.is_dir():
                    yield stem, entry.path
                elif suffix == "py" or (suffix and ("." + suffix) in _COMPILED):
                    yield stem, None
    except OSError:
        return


def _kind(path: str | None) -> Kind:
    if path is None:
        return "module"
    return "package" if os.path.isfile(os.path.join(path, "__init__.py")) else "folder"


def _holds_sources(folder: str, levels: int) -> bool:
    if levels == 0:
        return False
    if os.path.isfile(os.path.join(folder, "__init__.py")):
        return True
    return any(path is None or _holds_sources(path, levels - 1) for _, path in _entries(folder))
