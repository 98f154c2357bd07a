"""Code paging: how many round trips it takes, what is found, what is refused, and what changes are noticed."""

from __future__ import annotations

import linecache
import os
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from offload_local import peer_pair

from remotegpu_offload.code.allowed import allowed
from remotegpu_offload.code.finder import Finder
from remotegpu_offload.code.link import Link
from remotegpu_offload.code.naming import MAIN_ALIAS
from remotegpu_offload.code.scan import related
from remotegpu_offload.code.server import CodeServer
from remotegpu_offload.code.sources import Main
from remotegpu_offload.files.areas import Areas
from remotegpu_offload.files.rules import pattern
from remotegpu_offload.wire import Peer, Service


def write(folder: Path, **files: str) -> None:
    """Keys are paths: `pkg__inner` is pkg/inner.py, `pkg____init__` is pkg/__init__.py."""
    for name, text in files.items():
        base, package, _ = name.partition("____init__")
        path = folder / (base.replace("__", "/") + ("/__init__" if package else "") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


class Side:
    """Both halves of code paging in this process."""

    def __init__(self, client: Peer, acceptor: Peer, server: CodeServer) -> None:
        self.server = server
        self.client = client
        server.names()
        server.attach(client)
        # No folder is the client's alone here.
        self.finder = Finder(Link(acceptor, ""), server.hello(), Areas([], []))
        acceptor.serve(Service.CODE, self.finder.answer, inline=True)
        client.start()
        acceptor.start()
        self._acceptor = acceptor

    @property
    def trips(self) -> int:
        return self._acceptor.counters.round_trips

    def wait_for_notices(self) -> None:
        """Waits for notices: they come in order, so an answered request comes after them."""
        self.finder.link.request(Service.CODE, {"op": "names", "path": []})


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the client's search path; what is imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def side(paths: Path) -> Iterator[Callable[..., Side]]:
    with peer_pair(start=False) as (client, acceptor):
        made: list[Side] = []

        def make(page: tuple[str, ...] = ("./",), never: tuple[str, ...] = (), main: Main | None = None) -> Side:
            made.append(Side(client, acceptor, CodeServer(page, never, paths, main=main)))
            return made[0]

        yield make


def load(finder: Finder, name: str) -> Any:
    """Imports by this finder alone, as in another process."""
    for part in [name[: at if at >= 0 else None] for at in _dots(name)]:
        if part not in sys.modules:
            spec = finder.find_spec(part, None)
            if spec is None:
                raise ModuleNotFoundError(part)
            import importlib.util

            module = importlib.util.module_from_spec(spec)
            sys.modules[part] = module
            if spec.loader is not None:
                spec.loader.exec_module(module)
    return sys.modules[name]


def _dots(name: str) -> list[int]:
    return [at for at, letter in enumerate(name) if letter == "."] + [-1]


@pytest.fixture
def installed(side: Callable[..., Side]) -> Iterator[Callable[..., Side]]:
    """The finder is asked first for what it serves, so that imports inside of modules come to it too."""
    made: list[Side] = []

    def make(*arguments: Any, **keywords: Any) -> Side:
        it = side(*arguments, **keywords)
        it.finder.prefer_client = True
        it.finder.install()
        made.append(it)
        return it

    yield make
    for it in made:
        it.finder.remove()


def test_a_package_of_four_files_is_one_fault(installed: Callable[..., Side], paths: Path) -> None:
    write(
        paths,
        mynet____init__="from .layers import Layer\nfrom . import train\n",
        mynet__layers="class Layer:\n    size = 3\n",
        mynet__train="from mynet.layers import Layer\nfrom mynet.deep import tools\nVALUE = Layer.size + tools.MORE\n",
        mynet__deep____init__="",
        mynet__deep__tools="MORE = 4\n",
    )
    it = installed()
    import mynet  # type: ignore[import-not-found]

    assert mynet.train.VALUE == 7
    assert type(mynet.__loader__).__name__ == "PagedLoader"
    assert (it.trips, it.finder.counters["faults"], it.server.counters["modules"]) == (1, 1, 5)


def test_names_that_the_client_has_not_cost_nothing(installed: Callable[..., Side], paths: Path) -> None:
    write(paths, mypkg____init__="", one="VALUE = 1\n")
    it = installed()
    for name in ("numpy_ext", "tqdm_nowhere", "org", "msvcrt"):
        assert it.finder.find_spec(name, None) is None
    assert it.trips == 0
    import mypkg  # type: ignore[import-not-found]  # noqa: F401

    assert it.trips == 1
    for name in ("mypkg.nothing", "mypkg.one"):
        with pytest.raises(ModuleNotFoundError):
            __import__(name)
    assert it.trips == 1


def test_a_module_that_is_absent_is_asked_for_once(side: Callable[..., Side], paths: Path) -> None:
    write(paths, gone="VALUE = 1\n")
    it = side()
    (paths / "gone.py").unlink()
    assert it.finder.find_spec("gone", None) is None
    assert it.finder.find_spec("gone", None) is None
    assert it.trips == 1
    assert it.server.counters["absent"] == 1


def test_what_is_kept_is_refused_with_the_line_that_keeps_it(side: Callable[..., Side], paths: Path) -> None:
    write(paths, open__it="", open____init__="", open__secrets="KEY = 1\n", vault="KEY = 2\n", other="")
    it = side(page=("open", "vault"), never=("open.secrets", "vault"))
    assert it.server.names() == ["open"]
    load(it.finder, "open")
    with pytest.raises(ModuleNotFoundError, match=r"code\.never\b") as refused:
        it.finder.find_spec("open.secrets", None)
    assert refused.value.name == "open.secrets"
    assert it.finder.find_spec("vault", None) is None
    # A request that bypasses the finder's own checks is refused too.
    for name, key in (("vault", "never"), ("other", "page"), ("os", "page"), ("open.secrets", "never")):
        reply = it.finder.link.request(Service.CODE, {"op": "page", "name": name})
        assert name in reply.header["refused"] and f"code.{key}" in reply.header["refused"]
        assert not reply.buffers
    assert it.server.counters["refused"] == 5


def test_machine_code_and_byte_code_are_not_sent(side: Callable[..., Side], paths: Path) -> None:
    import importlib.machinery
    import py_compile

    write(paths, native____init__="", compiled="VALUE = 1\n")
    (paths / "native" / f"_fast{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"\x7fELF")
    py_compile.compile(str(paths / "compiled.py"), cfile=str(paths / "compiled.pyc"))
    (paths / "compiled.py").unlink()
    it = side()
    load(it.finder, "native")
    with pytest.raises(ImportError, match=r"\bnative\._fast\b") as refused:
        it.finder.find_spec("native._fast", None)
    assert refused.value.name == "native._fast"
    reply = it.finder.link.request(Service.CODE, {"op": "page", "name": "compiled"})
    assert "compiled" in reply.header["refused"]


def test_namespace_packages_and_zip_files(installed: Callable[..., Side], paths: Path) -> None:
    write(paths, space__part__inner="VALUE = 'in a namespace'\n")
    with zipfile.ZipFile(paths / "lib.zip", "w") as archive:
        archive.writestr("zipped.py", "VALUE = 'in a zip'\n")
    sys.path.insert(0, str(paths / "lib.zip"))
    it = installed(page=("./", "zipped"))
    import zipped  # type: ignore[import-not-found]
    from space.part import inner  # type: ignore[import-not-found]

    assert (inner.VALUE, zipped.VALUE) == ("in a namespace", "in a zip")
    assert it.server.counters["refused"] == 0


def test_the_main_module_has_another_name_and_its_guard_is_not_run(installed: Callable[..., Side], paths: Path) -> None:
    write(
        paths,
        helper="VALUE = 6\n",
        script="""
            import helper
            class Thing:
                size = helper.VALUE
            if __name__ == "__main__":
                raise SystemExit("run")
            """,
    )
    it = installed(main=Main(str(paths / "script.py")))
    import importlib

    sys.modules.pop(MAIN_ALIAS, None)
    module = importlib.import_module(MAIN_ALIAS)
    assert module.Thing.size == 6
    assert module.Thing.__module__ == MAIN_ALIAS
    assert module.__file__ == str(paths / "script.py")
    assert it.trips == 1
    # A script that runs is the one that was started, whatever is written to its file in the meantime.
    write(paths, script="1 / 0\n")
    assert it.server.refresh(it.client) == []


def test_changed_sources_are_imported_again_with_the_modules_that_import_them(
    installed: Callable[..., Side], paths: Path
) -> None:
    write(paths, low="VALUE = 1\n", high="import low\nVALUE = low.VALUE * 10\n", aside="VALUE = 5\n")
    it = installed()
    import aside  # type: ignore[import-not-found]
    import high  # type: ignore[import-not-found]

    assert high.VALUE == 10
    assert it.server.refresh(it.client) == []
    trips = it.trips
    (paths / "low.py").write_text("VALUE = 222\n")
    assert it.server.refresh(it.client) == ["high", "low"]
    it.wait_for_notices()
    import high as high_again

    assert high_again.VALUE == 2220
    assert sys.modules["aside"] is aside
    assert it.trips == trips + 2  # one for the wait, one for both modules
    # Touched, but the same.
    os.utime(paths / "aside.py", ns=(1, 1))
    assert it.server.refresh(it.client) == []


def test_new_modules_are_noticed(installed: Callable[..., Side], paths: Path) -> None:
    write(paths, pkg____init__="", pkg__old="")
    it = installed()
    import pkg.old  # type: ignore[import-not-found]  # noqa: F401

    assert it.finder.find_spec("pkg.new", None) is None
    write(paths, pkg__new="VALUE = 1\n", fresh="VALUE = 2\n")
    import importlib

    importlib.invalidate_caches()
    it.server.refresh(it.client)
    it.wait_for_notices()
    import fresh  # type: ignore[import-not-found]
    from pkg import new

    assert (new.VALUE, fresh.VALUE) == (1, 2)


def test_tracebacks_show_the_clients_source(installed: Callable[..., Side], paths: Path) -> None:
    import traceback

    write(paths, failing="def f():\n    return 1 / 0  # look here\n")
    installed()
    linecache.clearcache()
    import failing  # type: ignore[import-not-found]

    (paths / "failing.py").unlink()
    with pytest.raises(ZeroDivisionError) as caught:
        failing.f()
    assert "return 1 / 0  # look here" in "".join(traceback.format_exception(caught.value))


def test_cells_of_a_notebook_are_served_as_lines(side: Callable[..., Side]) -> None:
    it = side()
    name = "/tmp/ipykernel_123/456.py"
    linecache.cache[name] = (3, None, ["x = 1\n", "y = x\n"], name)
    linecache.cache["/etc/shadow"] = (3, None, ["root\n"], "/etc/shadow")
    try:
        reply = it.finder.link.request(Service.CODE, {"op": "lines", "file": name})
        assert bytes(reply.buffers[0]) == b"x = 1\ny = x\n"
        refused = it.finder.link.request(Service.CODE, {"op": "lines", "file": "/etc/shadow"})
        assert "only cells" in refused.header["error"][1]
    finally:
        del linecache.cache[name], linecache.cache["/etc/shadow"]


# --- the pure parts ---


@pytest.mark.parametrize(
    ("source", "package", "expected"),
    [
        ("import a.b.c", "", ["a", "a.b", "a.b.c"]),
        ("from .x import y, z as w", "p.q", ["p", "p.q", "p.q.x", "p.q.x.y", "p.q.x.z"]),
        ("from .. import k", "p.q", ["p", "p.k"]),
        ("from ...far import k", "p.q", []),
        ("from . import k", "", []),
        ("from m import *", "", ["m"]),
        ("def f():\n  try:\n    import late\n  except ImportError:\n    import other", "", ["late", "other"]),
        ("if TYPE_CHECKING:\n  import no\nelse:\n  import yes", "", ["yes"]),
        ("import typing\nif typing.TYPE_CHECKING:\n  import no", "", ["typing"]),
        ("match x:\n  case 1:\n    import m", "", ["m"]),
        ("class C:\n  import inner", "", ["inner"]),
        ("with a:\n  import b", "", ["b"]),
        ("not python", "", []),
        ("import b\nimport a\nimport b", "", ["b", "a"]),
        ("\0", "", []),
    ],
)
def test_related_modules(source: str, package: str, expected: list[str]) -> None:
    assert related(source.encode(), package) == expected


def test_what_may_leave_by_name_and_by_folder(tmp_path: Path) -> None:
    for folder in ("src/pkg", "venv/lib/site-packages/dep", "src/.hidden"):
        (tmp_path / folder).mkdir(parents=True)
    rules = allowed(["./src", "named.inner", "glob*"], ["./src/pkg/private", "named.inner.no*"], str(tmp_path))
    yes = [
        ("pkg.mod", "src/pkg/mod.py"),
        ("named.inner.deep", "/elsewhere/x.py"),
        ("named", "/elsewhere/__init__.py"),
        ("globby.x", None),
    ]
    no = [
        ("pkg.private", "src/pkg/private/__init__.py"),
        ("pkg.private.x", "src/pkg/private/x.py"),
        ("named.other", "/elsewhere/y.py"),
        ("named.inner.nothing", "/elsewhere/z.py"),
        ("named.inner.nothing.below", "/elsewhere/z.py"),
        ("dep", "venv/lib/site-packages/dep/__init__.py"),
        ("hidden", "src/.hidden/h.py"),
        ("out", "src/../out.py"),
        ("builtin", None),
    ]
    for name, origin in yes + no:
        place = None if origin is None else str(tmp_path / origin)
        assert rules.module(name, place) is ((name, origin) in yes), name


def test_modules_in_a_volume_of_a_config_map_may_leave(tmp_path: Path) -> None:
    """Lays files out as the kubelet does: links to links, so that all files change at once."""
    version = tmp_path / "..2026_11_22_10_00_00.1"
    version.mkdir()
    (version / "steps.py").write_text("pass\n")
    (tmp_path / "..data").symlink_to(version.name)
    (tmp_path / "steps.py").symlink_to("..data/steps.py")
    assert allowed([str(tmp_path)], [], "/").module("steps", str(tmp_path / "steps.py"))
    assert pattern("./**", str(tmp_path)).matches(str((tmp_path / "steps.py").resolve()))


def test_a_link_out_of_a_served_folder_serves_nothing(
    side: Callable[..., Side], paths: Path, tmp_path_factory: Any
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "linked.py").write_text("SECRET = 1\n")
    (paths / "linked.py").symlink_to(outside / "linked.py")
    it = side()
    reply = it.finder.link.request(Service.CODE, {"op": "page", "name": "linked"})
    assert "stays with the client" in reply.header["refused"]
