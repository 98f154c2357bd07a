"""The client's half of code paging: sends the acceptor the source that it asks for, if the configuration allows it."""

import errno
import json
import linecache
import os
import re
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib.machinery import ModuleSpec
from typing import Any, Final

from remotegpu_offload.code import sources
from remotegpu_offload.code.allowed import Allowed, allowed
from remotegpu_offload.code.naming import MAIN_ALIAS, is_ours
from remotegpu_offload.code.scan import related
from remotegpu_offload.code.sources import Main, Source
from remotegpu_offload.files.opening import read_regular
from remotegpu_offload.wire.frames import Message, Service
from remotegpu_offload.wire.peer import Peer
from remotegpu_offload.wire.request import Request

LARGEST_DATA: Final = 256 << 20
_RIDE_ALONG_BYTES: Final = 8 << 20
_RIDE_ALONG_PAGES: Final = 1000
_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
# The names under which interactive interpreters keep the source of their cells in linecache.
_CELL: Final = re.compile(r"<(ipython|python)-input-|.*[/\\]ipykernel_\d+[/\\]\d+\.py\Z")


class RefusedError(PermissionError):
    """The acceptor asked for something that it may not have. The message names it, and the deciding entry."""


@dataclass(frozen=True, slots=True)
class _Served:
    real: str
    stamp: tuple[int, int]
    digest: str
    imports: tuple[str, ...]
    folders: tuple[str, ...]
    folder_stamps: tuple[int, ...]


class CodeServer:
    """Serves one session's acceptors. `counters`: pages, modules, bytes, absent, refused, data, lines.

    `page` and `never` come from the configuration; their paths are relative to the folder `base`. `main` is the main
    module, which may always be sent. With `with_main_folder` (there is no configuration), its folder is served too.
    """

    def __init__(
        self,
        page: Iterable[str],
        never: Iterable[str],
        base: str | os.PathLike[str],
        *,
        prefer: str = "server-installed",
        main: Main | None = None,
        with_main_folder: bool = False,
    ) -> None:
        self.main = main
        self.prefer = prefer
        entries = list(page)
        if main is not None and with_main_folder:
            entries.append(os.path.dirname(os.path.abspath(main.path)) + "/")
        self.allowed: Allowed = allowed(entries, never, os.fspath(base))
        self.counters: Counter[str] = Counter()
        self._served: dict[str, _Served] = {}
        self._names: set[str] = set()
        self._extra: list[str] = []
        self._folders: list[tuple[str, str]] | None = None
        self._path_stamps: tuple[int, ...] = ()
        self._main_source: Source | None = None
        self._lock = threading.RLock()

    def attach(self, peer: Peer) -> None:
        """Serves this acceptor from now on. Nothing has been sent to it yet."""
        with self._lock:
            self._served.clear()
        # Objects that the acceptor returns may refer to classes of the main module.
        sys.modules.setdefault(MAIN_ALIAS, sys.modules["__main__"])
        peer.serve(Service.CODE, self.answer)

    def hello(self) -> dict[str, Any]:
        """Returns the part of the greeting that lists the served names: other names then need no round trip."""
        return {
            "serves": self.names(),
            "prefer": self.prefer,
            "path": [os.path.abspath(entry) for entry in sys.path],
            "main": None if self.main is None else self.main.path,
            "folders": [*self.allowed.folders, *(folder for _, folder in self._packages())],
        }

    def names(self) -> list[str]:
        """Returns the top-level modules that are served."""
        self._path_stamps = _stamps(sys.path)
        tops = {pattern.partition(".")[0] for pattern in self.allowed.names}
        found = {name for name in tops if name.isidentifier()}
        if len(found) < len(tops):
            found |= {name for name in sources.top_level(sys.path) if any(fnmatchcase(name, top) for top in tops)}
        found |= self._in_folders(sys.path).keys()
        found |= {name for name, path in sources.editable().items() if self.allowed.module(name, path)}
        self._names = {name for name in found if not self.allowed.kept(name, None)}
        if self.main is not None:
            self._names.add(MAIN_ALIAS)
        self._folders = None
        return sorted(self._names)

    def refresh(self, peer: Peer) -> list[str]:
        """Tells the acceptor which modules changed on disk since they were sent, and which modules import these.

        Called before a call. Costs one stat for each sent module, and no round trip. Returns the names.
        """
        with self._lock:
            # A running script cannot be loaded again, so the acceptor keeps the first version.
            served = {name: page for name, page in self._served.items() if name != MAIN_ALIAS}
            changed = {name for name, page in served.items() if _changed(page)}
            news = self._new_names()
            if not changed and not news:
                return []
            grown = True
            while grown:
                more = {
                    name
                    for name, page in served.items()
                    if name not in changed and not changed.isdisjoint(page.imports)
                }
                changed |= more
                grown = bool(more)
            for name in changed:
                del self._served[name]
            names = sorted(changed)
        self.counters["changed"] += len(names)
        peer.notify(Service.CODE, {"op": "changed", "names": names, **news})
        return names

    def _new_names(self) -> dict[str, Any]:
        """Returns new modules in the folders of sent packages or on the search path."""
        news: dict[str, Any] = {}
        for name, page in list(self._served.items()):
            stamps = _stamps(page.folders)
            if stamps != page.folder_stamps:
                self._served[name] = replace(page, folder_stamps=stamps)
                news.setdefault("submodules", {})[name] = sources.submodules(page.folders)
        stamps = _stamps(sys.path)
        if stamps != self._path_stamps:
            known = set(self._names)
            self.names()
            self._names |= known
            if self._names != known:
                news["serves"] = sorted(self._names)
        return news

    def may_read(self, real: str) -> bool:
        """Returns whether a file is the source of a sent module, or lies in the folder of a served package."""
        if self.main is not None and real == os.path.realpath(self.main.path):
            return True
        return any(page.real == real for page in list(self._served.values())) or self._in_package(real)

    def answer(self, request: Request) -> Message:
        """Answers one request of an acceptor. Refusals and file system errors become answers: `refused` or `error`."""
        header = request.header
        operations: dict[str, Callable[[dict[str, Any]], Message]] = {
            "page": self._page,
            "names": self._more_names,
            "data": self._data,
            "list": self._list,
            "lines": self._lines,
        }
        operation = operations.get(str(header.get("op")))
        if operation is None:
            raise self._refused(f"the code server knows no {header.get('op')!r}")
        try:
            return operation(header)
        except OSError as error:
            return Message({"error": [error.errno or errno.EACCES, error.strerror or str(error)]})

    def _refused(self, sentence: str) -> RefusedError:
        self.counters["refused"] += 1
        return RefusedError(sentence)

    # --- modules ---

    def _page(self, header: dict[str, Any]) -> Message:
        name = header.get("name")
        if not isinstance(name, str) or len(name) > 1000 or not _MODULE.match(name):
            raise self._refused("a module's name was expected")
        try:
            source = self._load(name)
        except sources.NotSourceError as error:
            self.counters["refused"] += 1
            return Message({"refused": str(error)})
        except RefusedError as error:
            return Message({"refused": str(error)})
        except OSError as error:
            return Message({"refused": f"the source of {name} cannot be read at the client: {error}"})
        if source is None:
            self.counters["absent"] += 1
            return Message({"absent": True})
        with self._lock:
            found = list(self._with_related(source))
            for page, imports in found:
                self._served[page.name] = _served(page, imports)
        buffers = [zlib.compress(page.text, 1) for page, _ in found]
        self.counters["pages"] += 1
        self.counters["modules"] += len(found)
        self.counters["bytes"] += sum(map(len, buffers))
        return Message({"pages": [_describe(page) for page, _ in found]}, buffers)

    def _load(self, name: str) -> Source | None:
        """Returns the source of a module; None if it does not exist. Raises RefusedError, NotSourceError, OSError."""
        if name == MAIN_ALIAS:
            if self._main_source is None and self.main is not None:
                self._main_source = sources.load_main(self.main)
            return self._main_source
        if is_ours(name):
            raise self._refused(
                f"{name} stays with the client: the acceptor runs its own; install the same version there"
            )
        if self.allowed.kept(name, None):
            raise self._refused(f"{name} stays with the client: code.never names it")
        if name.partition(".")[0] not in self._names:
            raise self._refused(f"{name} is not served: add it to code.page of the client's remotegpu.yaml")
        spec = sources.find_spec(name, self._extra)
        if spec is None:
            return None
        if not self._may_send(name, spec):
            what = "code.never names it" if self._kept(name, spec) else "code.page does not name it"
            raise self._refused(f"{name} stays with the client: {what}")
        return sources.load(name, spec)

    def _may_send(self, name: str, spec: ModuleSpec) -> bool:
        return any(self.allowed.module(name, place) for place in _places(spec)) and not self._kept(name, spec)

    def _kept(self, name: str, spec: ModuleSpec) -> bool:
        return any(self.allowed.kept(name, place) for place in _places(spec))

    def _with_related(self, first: Source) -> Iterator[tuple[Source, tuple[str, ...]]]:
        """Yields the module and, transitively, its imports, if they may be sent and were not sent before."""
        size, count, seen, waiting = 0, 0, {first.name}, [first]
        while waiting:
            source = waiting.pop(0)
            imports = tuple(related(source.text, source.package)) if source.origin is not None else ()
            yield source, imports
            count += 1
            size += len(source.text)
            for name in imports:
                if name in seen or name in self._served or name.partition(".")[0] not in self._names:
                    continue
                seen.add(name)
                if size < _RIDE_ALONG_BYTES and count + len(waiting) < _RIDE_ALONG_PAGES:
                    more = self._quietly(name)
                    if more is not None:
                        waiting.append(more)

    def _quietly(self, name: str) -> Source | None:
        try:
            spec = None if self.allowed.kept(name, None) else sources.find_spec(name, self._extra)
            return None if spec is None or not self._may_send(name, spec) else sources.load(name, spec)
        except (OSError, ImportError, ValueError, AttributeError):
            # The error is reported when the module is really imported.
            return None

    # --- names and data ---

    def _more_names(self, header: dict[str, Any]) -> Message:
        """Answers which modules are in folders that the program itself added to sys.path."""
        folders = [path for path in header.get("path", []) if isinstance(path, str) and os.path.isabs(path)][:1000]
        found = {name: kind for name, kind in self._in_folders(folders).items() if not self.allowed.kept(name, None)}
        if found:
            self._extra += [path for path in folders if path not in self._extra]
            self._names |= found.keys()
            self._folders = None
        return Message({"names": found})

    def _in_folders(self, folders: Iterable[str]) -> dict[str, sources.Kind]:
        served = [folder for folder in dict.fromkeys(map(os.path.realpath, folders)) if self.allowed.path(folder)]
        return sources.top_level(served)

    def _packages(self) -> list[tuple[str, str]]:
        """Returns the served packages: names, and real paths of their outermost folders."""
        if self._folders is None:
            self._folders = [pair for name in sorted(self._names - {MAIN_ALIAS}) for pair in self._folders_of(name)]
        return self._folders

    def _folders_of(self, name: str) -> Iterator[tuple[str, str]]:
        try:
            spec = sources.find_spec(name, self._extra)
        except (ImportError, ValueError, AttributeError):
            return
        # Any folder can be a namespace package, so only its modules are served.
        if spec is None or spec.submodule_search_locations is None or spec.origin in (None, "namespace"):
            return
        for folder in spec.submodule_search_locations:
            if self.allowed.module(name, folder):
                yield name, os.path.realpath(folder)

    def _in_package(self, real: str) -> bool:
        for name, folder in self._packages():
            if _below(real, folder):
                inner = [part.partition(".")[0] for part in real[len(folder) :].split("/") if part]
                return self.allowed.module(".".join([name, *inner]), real)
        return False

    def _readable(self, path: object) -> str:
        if not isinstance(path, str) or "\0" in path or not path.startswith("/") or len(path) > 4096:
            raise self._refused("an absolute path was expected")
        real = os.path.realpath(path)
        if not self.may_read(real):
            raise self._refused(f"{path} is in no served package: add it to code.page or files.read")
        return real

    def _data(self, header: dict[str, Any]) -> Message:
        content = read_regular(self._readable(header.get("path")), LARGEST_DATA)
        self.counters["data"] += 1
        self.counters["bytes"] += len(content)
        return Message({}, [content])

    def _list(self, header: dict[str, Any]) -> Message:
        """Answers with the names in a folder of a served package; True marks a folder."""
        real = self._readable(header.get("path"))
        self.counters["data"] += 1
        with os.scandir(real) as found:
            entries = [(entry.name, entry.is_dir()) for entry in found if self.may_read(os.path.realpath(entry.path))]
        return Message({}, [json.dumps(sorted(entries)).encode()])

    def _lines(self, header: dict[str, Any]) -> Message:
        """Answers with the source of an interactive cell, for tracebacks and `inspect.getsource`."""
        name = header.get("file")
        if not isinstance(name, str) or not _CELL.match(name) or name not in linecache.cache:
            raise self._refused("only cells of a notebook are served as lines")
        self.counters["lines"] += 1
        return Message({}, ["".join(linecache.getlines(name)).encode("utf-8", "surrogateescape")])


def _describe(source: Source) -> dict[str, Any]:
    return {
        "name": source.name,
        "origin": source.origin,
        "folders": source.folders,
        "package": source.package,
        "submodules": None if source.folders is None else sources.submodules(source.folders),
        "sha256": source.digest,
        "size": source.stamp[0],
        "mtime_ns": source.stamp[1],
    }


def _places(spec: ModuleSpec) -> list[str | None]:
    if spec.origin is not None and spec.origin != "namespace":
        return [spec.origin]
    return [str(folder) for folder in spec.submodule_search_locations or ()] or [None]


def _served(page: Source, imports: tuple[str, ...]) -> _Served:
    folders = page.folders or ()
    return _Served(os.path.realpath(page.origin or ""), page.stamp, page.digest, imports, folders, _stamps(folders))


def _stamps(folders: Iterable[str]) -> tuple[int, ...]:
    return tuple(sources.stamp_of(folder or ".")[1] for folder in folders)


def _changed(served: _Served) -> bool:
    if not served.stamp[1] or sources.stamp_of(served.real) == served.stamp:
        return False
    try:
        source = Source("", None, None, "", read_regular(served.real, sources.LARGEST_SOURCE))
    except OSError:
        return True
    return source.digest != served.digest


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
