"""The acceptor's half of code paging: imports modules from the client that are not installed here."""

import contextlib
import importlib.abc
import importlib.util
import linecache
import os
import sys
import threading
import types
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from remotegpu_offload.code.link import SOCKET_NAME, Link, Relay
from remotegpu_offload.code.naming import MAIN_ALIAS, is_ours, own_place
from remotegpu_offload.code.resources import PagedResources, entries_from
from remotegpu_offload.code.tracebacks import fetch_cells, show_in_tracebacks
from remotegpu_offload.files.areas import Areas, areas_of, own_folders
from remotegpu_offload.wire.frames import Message, Service
from remotegpu_offload.wire.request import Request

if TYPE_CHECKING:
    from remotegpu_offload.acceptor.session import AcceptorSession


@dataclass(frozen=True, slots=True)
class Page:
    """One module of the client, with its source."""

    name: str
    origin: str | None
    folders: tuple[str, ...] | None
    package: str
    submodules: Mapping[str, str]  # name to kind: module, package, folder
    size: int
    mtime_ns: int
    text: bytes


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules that the client serves.

    `counters`: faults (round trips for modules), modules, refused, absent.
    """

    # Marks this finder for `code.sources`: a process that serves modules must not serve those of its own client.
    remotegpu_watches = True

    def __init__(self, link: Link, hello: Mapping[str, Any], areas: Areas) -> None:
        self.link = link
        self.areas = areas
        self.serves = frozenset(hello.get("serves", ()))
        self.prefer_client = hello.get("prefer") == "client"
        self.pages: dict[str, Page] = {}
        self.by_origin: dict[str, Page] = {}
        self.counters: Counter[str] = Counter()
        # Called after changed modules were dropped, so that a component can drop objects of their old versions.
        self.on_changed: list[Callable[[], None]] = []
        # Absent and refused module names, with the client's reason.
        self.missing: dict[str, str] = {}
        self._known_path = set(hello.get("path", ()))
        self._lock = threading.RLock()

    def install(self) -> None:
        """Adds the finder to the import system.

        Installed packages take precedence unless the client is preferred. Submodules of a paged package always come
        from the client.
        """
        sys.meta_path.insert(0, _Inner(self))
        sys.path_hooks.insert(0, self._folder)
        for path in [path for path in sys.path_importer_cache if self._is_clients(path)]:
            del sys.path_importer_cache[path]
        if self.prefer_client:
            sys.meta_path.insert(0, self)
        else:
            sys.meta_path.append(self)

    def remove(self) -> None:
        sys.meta_path[:] = [
            finder for finder in sys.meta_path if finder is not self and getattr(finder, "outer", None) is not self
        ]
        sys.path_hooks[:] = [hook for hook in sys.path_hooks if hook != self._folder]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if is_ours(name):
            return None
        parent = name.rpartition(".")[0]
        if not parent:
            if name not in self.serves and name not in self._more_names():
                return None
        elif parent in self.pages:
            return self.inner_spec(name)
        elif name.partition(".")[0] not in self.serves or getattr(sys.modules.get(parent), "__file__", None):
            # An installed package is not mixed with modules of the client's version.
            return None
        page = self.page(name)
        return None if page is None else self._spec(page)

    def inner_spec(self, name: str) -> ModuleSpec | None:
        """Finds a module in a paged package. Returns None, without a round trip, if the client does not have it."""
        parent, _, last = name.rpartition(".")
        around = self.pages.get(parent)
        if around is None or last not in around.submodules:
            return None
        page = self.page(name)
        return None if page is None else self._spec(page)

    def page(self, name: str) -> Page | None:
        """Returns the module's page, and asks the client if necessary. Raises ImportError if the client refuses it."""
        found = self.pages.get(name)
        if found is not None:
            return found
        if name not in self.missing:
            self.counters["faults"] += 1
            self._take(name, self.link.request(Service.CODE, {"op": "page", "name": name}))
            found = self.pages.get(name)
            if found is not None:
                return found
        if self.missing.get(name):
            raise ModuleNotFoundError(self.missing[name], name=name)
        return None

    def data(self, path: str) -> bytes:
        """Reads a file of a served package. Raises OSError."""
        page = self.by_origin.get(path)
        if page is not None:
            return page.text
        self.counters["data"] += 1
        return bytes(ask_for_file(self.link, {"op": "data", "path": path}).buffers[0])

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        """Returns the names in a folder of a served package; True marks a folder. Raises OSError."""
        self.counters["data"] += 1
        return entries_from(bytes(ask_for_file(self.link, {"op": "list", "path": folder}).buffers[0]))

    def code_of(self, page: Page) -> types.CodeType:
        return compile(page.text, page.origin or f"<{page.name}>", "exec", dont_inherit=True)

    def main(self) -> Page:
        """Returns the program's main module. Raises ImportError."""
        page = self.page(MAIN_ALIAS)
        if page is None:
            raise ModuleNotFoundError("the client's program has no main file", name=MAIN_ALIAS)
        return page

    def answer(self, request: Request) -> None:
        """Handles the client's notice of changed sources: drops these modules, so that their next import loads the new
        source."""
        header = request.header
        if header.get("op") != "changed":
            return
        with self._lock:
            for name in header.get("names", ()):
                if is_ours(name):
                    continue
                page = self.pages.pop(name, None)
                sys.modules.pop(name, None)
                if page is not None and page.origin is not None:
                    self.by_origin.pop(page.origin, None)
                    linecache.cache.pop(page.origin, None)
            for name, submodules in header.get("submodules", {}).items():
                page = self.pages.get(name)
                if page is not None:
                    self.pages[name] = replace(page, submodules=submodules)
            self.serves |= frozenset(header.get("serves", ()))
            self.missing.clear()
        for callback in self.on_changed:
            callback()

    def _take(self, name: str, reply: Message) -> None:
        header = reply.header
        with self._lock:
            if "pages" not in header:
                self.missing[name] = str(header.get("refused", ""))
                self.counters["refused" if "refused" in header else "absent"] += 1
                return
            for described, text in zip(header["pages"], reply.buffers, strict=True):
                self._keep(described, zlib.decompress(text))

    def _keep(self, described: Mapping[str, Any], text: bytes) -> None:
        if is_ours(described["name"]):
            # The modules that implement this session always come from this machine.
            return
        folders = described["folders"]
        page = Page(
            name=described["name"],
            origin=described["origin"],
            folders=None if folders is None else tuple(folders),
            package=described["package"],
            submodules=described["submodules"] or {},
            size=described["size"],
            mtime_ns=described["mtime_ns"],
            text=text,
        )
        self.counters["modules"] += 1
        self.pages[page.name] = page
        if page.origin is not None:
            self.by_origin[page.origin] = page
            show_in_tracebacks(page.origin, text)

    def _spec(self, page: Page) -> ModuleSpec:
        if page.origin is None:
            spec = ModuleSpec(page.name, None, is_package=True)
        else:
            kind = _MainSpec if page.name == MAIN_ALIAS else ModuleSpec
            spec = kind(page.name, PagedLoader(self, page), origin=page.origin, is_package=page.folders is not None)
            spec.has_location = True
        if page.folders is not None:
            spec.submodule_search_locations = list(page.folders)
        return spec

    def modules_in(self, folder: str) -> Mapping[str, str]:
        """Returns the modules that can be imported from a folder of the client: name to kind."""
        for page in list(self.pages.values()):
            if page.folders is not None and folder in page.folders:
                return page.submodules
        names: dict[str, str] = self.link.request(Service.CODE, {"op": "names", "path": [folder]}).header["names"]
        self.serves |= names.keys()
        return names

    def _more_names(self) -> frozenset[str]:
        """Returns the served names. Asks the client once for each folder that the program added to sys.path."""
        for path in sys.path:
            if path not in self._known_path:
                self._known_path.add(path)
                if self._is_clients(folder := os.path.abspath(path)):
                    self.modules_in(folder)
                    self.missing.clear()
        return self.serves

    def _is_clients(self, path: str) -> bool:
        return path.startswith("/") and not own_place(path) and self.areas.is_clients(os.path.normpath(path))

    def _folder(self, path: str) -> "_Folder":
        """Implements a hook of sys.path_hooks. Raises ImportError unless the path is a folder of the client."""
        folder = os.path.abspath(path)
        # `runpy.run_path` calls the hook with a script, to check whether it can be imported from.
        if folder.endswith((".py", ".pyc")) or not self._is_clients(folder):
            raise ImportError("not a folder of the client", path=path)
        return _Folder(self, folder)


class _Folder(importlib.abc.PathEntryFinder):
    """A folder of the client in sys.path. Lists its modules for `pkgutil`; `Finder` finds them by name."""

    def __init__(self, finder: Finder, path: str) -> None:
        self._finder = finder
        self._path = path

    def find_spec(self, fullname: str, target: types.ModuleType | None = None) -> ModuleSpec | None:
        return None

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        for name, kind in sorted(self._finder.modules_in(self._path).items()):
            if kind != "folder":
                yield prefix + name, kind == "package"


class _Inner(importlib.abc.MetaPathFinder):
    """The first finder on sys.meta_path. Keeps files of this machine from replacing submodules of a paged package."""

    remotegpu_watches = True

    def __init__(self, outer: Finder) -> None:
        self.outer = outer

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        return self.outer.inner_spec(name) if name.rpartition(".")[0] in self.outer.pages else None


class _MainSpec(ModuleSpec):
    """The spec of the main module. Relative imports start from the package in which `python -m` found the module."""

    @property
    def parent(self) -> str:
        loader = self.loader
        assert isinstance(loader, PagedLoader)
        return loader.page.package


class PagedLoader(importlib.abc.SourceLoader):
    """Loads one page. Only reads the source: the import system's own code does the rest, and tracebacks hide its
    frames."""

    def __init__(self, finder: Finder, page: Page) -> None:
        self.finder = finder
        self.page = page

    def is_package(self, fullname: str) -> bool:
        return self.page.folders is not None

    def get_filename(self, fullname: str) -> str:
        assert self.page.origin is not None
        return self.page.origin

    def get_data(self, path: str) -> bytes:
        path = os.fspath(path)
        return self.page.text if path == self.page.origin else self.finder.data(path)

    def get_resource_reader(self, fullname: str) -> PagedResources | None:
        if self.page.folders is None:
            return None
        return PagedResources(self.finder, self.page.folders[0])


def ask_for_file(link: Link, header: dict[str, Any]) -> Message:
    """Sends a CODE request about a file. Raises OSError with the client's error, or if the client refuses."""
    reply = link.request(Service.CODE, header)
    if "error" in reply.header:
        number, message = reply.header["error"]
        raise OSError(number, message, header.get("path"))
    return reply


def attach(session: "AcceptorSession") -> None:
    """Starts to serve imports from this session's client."""
    hello = session.hello.get("code", {})
    link = Link(session.peer, str(session.folder / SOCKET_NAME))
    finder = Finder(link, hello, areas_of(session.hello, own_folders(str(session.folder))))
    finder.install()
    session.loaded[Service.CODE] = finder
    session.stats["code"] = lambda: dict(finder.counters)
    session.peer.serve(Service.CODE, finder.answer, inline=True)
    session.peer.on_lost.append(lambda _reason: finder.remove())
    # A sandbox that denies sockets also denies new processes, so no process needs the relay.
    with contextlib.suppress(PermissionError):
        Relay(session.peer, link.relay, lambda request: _for_children(finder, request))
    prepare(finder)


def inherit(hello: Mapping[str, Any], relay: str, folder: str) -> Finder:
    """Installs a finder in a process that the program started, as `attach` does in the session's process."""
    finder = Finder(Link(None, relay), hello.get("code", {}), areas_of(hello, own_folders(folder)))
    finder.install()
    prepare(finder)
    return finder


def explain(error: BaseException, finder: Finder) -> None:
    """Adds a remedy to an import error, if the missing module could have come from the client."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    top = (name or "").partition(".")[0]
    if top and top not in finder.serves and not hasattr(error, "__notes__"):
        error.add_note(
            f"remotegpu: {top} is neither installed in the acceptor's environment nor served by the client: "
            "install it there, or add it to code.page in remotegpu.yaml"
        )


def prepare(finder: Finder) -> None:
    """Prepares a process of the session, so that pickle finds classes of `__main__`, and cells have their source."""
    main = sys.modules["__main__"]
    if MAIN_ALIAS in finder.serves:
        main.__dict__.setdefault("__getattr__", _of_main)
    fetch_cells(finder.link)


def _of_main(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(importlib.import_module(MAIN_ALIAS), name)


def _for_children(finder: Finder, request: Request) -> Message | None:
    """Answers a process of the program with a page that this process already has; None if it lacks the page."""
    if request.service == Service.CODE and request.header.get("op") == "page":
        page = finder.pages.get(str(request.header.get("name")))
        if page is not None:
            return Message({"pages": [_describe(page)]}, [zlib.compress(page.text, 1)])
    return None


def _describe(page: Page) -> dict[str, Any]:
    return {
        "name": page.name,
        "origin": page.origin,
        "folders": page.folders,
        "package": page.package,
        "submodules": dict(page.submodules),
        "size": page.size,
        "mtime_ns": page.mtime_ns,
    }
