"""An application's folder on the client: links to pages, and hooks that fetch a page at its first use.

All links are created at the start, so that folders list all files. A page is fetched when the program imports the file,
opens it or reads its status. Code that opens files in C sees an unfetched page as a missing file, never as an empty or
partial one; `open(path).close()` before that fetches the page.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, Final

from remotegpu_offload.reverse.errors import ReverseError
from remotegpu_offload.reverse.manifest import Manifest, closure
from remotegpu_offload.reverse.store import Pages

_COMPLETE: Final = ".complete"

Fetch = Callable[[Iterable[str]], None]


def lay_out(manifest: Manifest, pages: Pages, folder: Path) -> Path:
    """Creates the folder for this version of the application below `folder`, with a link for each file. Returns its
    path."""
    root = folder / "versions" / manifest.sha256
    complete = root / _COMPLETE
    if complete.exists():
        return root
    for path, file in manifest.files.items():
        link = root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(pages.path(file.sha256), link.parent)
        # Another process may create the same links at the same time.
        if not link.is_symlink():
            try:
                link.symlink_to(target)
            except FileExistsError:
                continue
    complete.touch()
    return root


class Tree:
    """The folder `root` of the application. `fetch` fetches pages."""

    def __init__(self, manifest: Manifest, root: Path, fetch: Fetch) -> None:
        self.files = manifest.files
        self.root = str(root)
        self._roots = tuple(f"{one}/" for one in dict.fromkeys((self.root, os.path.realpath(root))))
        self._fetch = fetch
        # All folders, for packages without __init__.py.
        self.folders = {path.rsplit("/", depth)[0] for path in self.files for depth in range(1, path.count("/") + 1)}

    def arm(self) -> None:
        """Makes the application's modules and files available in this process."""
        sys.addaudithook(self._audit)
        _watch_status(self)
        place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
        # At the position of a program's own folder: before installed modules, after built-in ones.
        sys.meta_path.insert(place, Finder(self))
        sys.path.insert(0, self.root)

    def inside(self, path: Any) -> str | None:
        """Returns the application's file for a path; None for any other path."""
        try:
            text = os.fsdecode(path)
        except (TypeError, ValueError):
            return None  # path is a descriptor or has a NUL
        whole = os.path.abspath(text)
        for root in self._roots:
            if whole.startswith(root):
                within = whole[len(root) :]
                return within if within in self.files else None
        return None

    def bring(self, paths: Iterable[str]) -> None:
        """Fetches these files. Raises OSError with the reason as its text."""
        missing = [path for path in paths if not os.path.lexists(self._page(path))]
        if not missing:
            return
        try:
            self._fetch(missing)
        except ReverseError as error:
            raise OSError(errno.EIO, str(error), missing[0]) from None

    def _page(self, path: str) -> str:
        link = os.path.join(self.root, path)
        return os.path.join(os.path.dirname(link), os.readlink(link))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not isinstance(arguments[0], int):
            path = self.inside(arguments[0])
            if path is not None:
                self.bring([path])


class Finder(MetaPathFinder):
    """Finds modules of the application. Fetches a module together with the modules that it imports."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        stem = fullname.replace(".", "/")
        for file, is_package in ((f"{stem}/__init__.py", True), (f"{stem}.py", False)):
            if file in self._tree.files:
                self._tree.bring(closure(self._tree.files, [file]))
                place = os.path.join(self._tree.root, file)
                folders = [os.path.dirname(place)] if is_package else None
                loader = SourceFileLoader(fullname, place)
                return spec_from_file_location(fullname, place, loader=loader, submodule_search_locations=folders)
        if stem in self._tree.folders:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [os.path.join(self._tree.root, stem)]
            return spec
        return None


def _watch_status(tree: Tree) -> None:
    """Replaces `os.stat`, which `os.path` and `pathlib` call: fetches the page, because a status follows the link."""
    original = os.stat

    def stat(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        try:
            return original(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        except FileNotFoundError:
            within = tree.inside(path) if dir_fd is None and follow_symlinks else None
            if within is None:
                raise
            tree.bring([within])
            return original(path)

    os.stat = stat
