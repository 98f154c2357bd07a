"""An acceptor that wants more of the client's code and files than the configuration allows."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from offload_local import peer_pair

from remotegpu_offload.code.server import CodeServer
from remotegpu_offload.code.sources import Main
from remotegpu_offload.files.rules import rules
from remotegpu_offload.files.server import LARGEST_READ, MOST_HANDLES, FileServer
from remotegpu_offload.program.terminal import Terminal
from remotegpu_offload.wire import Message, Peer, RemoteFailure, Service

SECRET = "the client's secret"


class Attacker:
    def __init__(self, folder: Path, peer: Peer, files: FileServer) -> None:
        self.folder = folder
        self.peer = peer
        self.files = files

    def ask(self, service: Service = Service.FILES, **header: Any) -> Message:
        return self.peer.request(service, header, timeout=60)

    def refused(self, service: Service = Service.FILES, **header: Any) -> str:
        """The sentence with which it was refused; nothing came along."""
        try:
            reply = self.ask(service, **header)
        except RemoteFailure as failure:
            return failure.error
        assert not reply.buffers or not any(len(buffer) for buffer in reply.buffers), header
        if "refused" in reply.header:
            return str(reply.header["refused"])
        assert "error" in reply.header, (header, reply)
        return str(reply.header["error"][1])


@pytest.fixture
def attacker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attacker]:
    for name in ("project/data", "project/out", "project/pkg/data", "outside"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("outside/secret", "project/secret", "project/.env", "project/data/.key", "project/pkg/data/.key"):
        (tmp_path / name).write_text(SECRET)
    (tmp_path / "project/data/free").write_text("free")
    (tmp_path / "project/pkg/__init__.py").write_text("")
    (tmp_path / "project/pkg/keys.py").write_text(f"KEY = {SECRET!r}\n")
    (tmp_path / "project/pkg/keys.json").write_text(SECRET)
    (tmp_path / "project/main.py").write_text("")
    project = tmp_path / "project"
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.chdir(project)
    code = CodeServer(["./"], ["pkg.keys"], project, main=Main(str(project / "main.py")))
    code.names()
    files = FileServer(rules(["./data/**"], ["./out/**"], str(project)), str(project), code.may_read)
    with peer_pair(start=False) as (client, acceptor):
        code.attach(client)
        files.attach(client)
        Terminal(descriptors=False).attach(client)
        client.start()
        acceptor.start()
        yield Attacker(project, acceptor, files)


def _paths(folder: Path) -> list[str]:
    (folder / "data/link").symlink_to(folder.parent / "outside/secret")
    (folder / "out/link").symlink_to(folder.parent / "outside")
    (folder / "data/loop").symlink_to(folder / "data/loop")
    return [
        f"{folder}/secret",
        f"{folder}/.env",
        f"{folder}/data/.key",
        f"{folder}/data/../secret",
        f"{folder}/data/../../outside/secret",
        f"{folder}/data//..//..//outside/./secret",
        f"{folder}/data/link",
        f"{folder}/out/link/secret",
        f"{folder}/out/link/../outside/secret",
        f"{folder}/pkg/keys.py",
        f"{folder}/pkg/keys.json",
        f"{folder}/pkg/data/.key",
        f"{folder}/pkg/data/../keys.py",
        "/proc/self/environ",
        "/proc/self/root" + str(folder.parent / "outside/secret"),
        "/proc/self/cwd/data/../secret",
        "/etc/passwd",
        "/dev/tty",
        "/",
    ]


def test_no_path_leads_out(attacker: Attacker) -> None:
    for path in _paths(attacker.folder):
        assert attacker.refused(op="open", path=path, flags=os.O_RDONLY), path
        assert attacker.refused(op="list", path=path), path
        assert attacker.refused(Service.CODE, op="data", path=path), path
        assert attacker.refused(Service.CODE, op="list", path=path), path
        for flags in (os.O_WRONLY | os.O_CREAT, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDONLY | os.O_TRUNC):
            assert attacker.refused(op="open", path=path, flags=flags), path
        for op in ("remove", "rmdir", "mkdir", "chmod", "utime"):
            if "link" not in path.rpartition("/")[2]:
                assert attacker.refused(op=op, path=path, mode=0o777), (op, path)
        assert attacker.refused(op="rename", path=path, to=f"{attacker.folder}/out/x"), path
        assert attacker.refused(op="rename", path=f"{attacker.folder}/out/y", to=path), path
    assert (attacker.folder.parent / "outside/secret").read_text() == SECRET
    assert (attacker.folder / "secret").read_text() == SECRET
    assert attacker.files.counters["refused"] > 100
    assert attacker.files.counters["bytes_read"] == 0
    assert len(attacker.files.refused) <= 100


def test_status_is_given_only_of_readable_files(attacker: Attacker) -> None:
    for path in (f"{attacker.folder}/secret", f"{attacker.folder}/nothing", "/etc/passwd", "/root", "/etc/none"):
        assert "does not name it" in attacker.refused(op="stat", path=path)
        assert attacker.ask(op="access", path=path, mode=os.R_OK).header == {"access": False}
    assert "stat" in attacker.ask(op="stat", path=f"{attacker.folder}/data/free").header
    # Names of what may not be read are not told either.
    listed = bytes(attacker.ask(op="list", path=f"{attacker.folder}/data").buffers[0])
    assert b"free" in listed
    assert b".key" not in listed


def test_invalid_paths_and_numbers_are_refused(attacker: Attacker) -> None:
    inside = f"{attacker.folder}/data/free"
    paths: list[Any] = [None, 7, [], "", "data/free", "\0", inside + "\0", "/" + "x" * 5000, "/x" * 3000, {}]
    for path in paths:
        assert attacker.refused(op="open", path=path, flags=0)
        assert attacker.refused(Service.CODE, op="data", path=path)
    for flags in (None, "x", 1 << 70):
        assert attacker.refused(op="open", path=f"{attacker.folder}/out/new", flags=flags) or True
    for name in (None, 7, "", "../x", "a..b", "a/b", "pkg.keys", "os", "pkg\n", "x" * 2000, "sys", "remotegpu"):
        assert attacker.refused(Service.CODE, op="page", name=name), name
    operations: list[Any] = ["exec", None, "__init__", "answer", 5, []]
    for op in operations:
        assert attacker.refused(op=op, path=inside)
        assert attacker.refused(Service.CODE, op=op)
    assert attacker.refused(Service.STDIO, op="exec")
    attacker.ask(Service.STDIO, op="write", fd=7)


def test_ranges_and_handles_are_checked(attacker: Attacker) -> None:
    (attacker.folder / "data/big").write_bytes(bytes(3 << 20))
    handle = attacker.ask(op="open", path=f"{attacker.folder}/data/big", flags=0).header["handle"]
    for offset, count in ((0, LARGEST_READ + 1), (-1, 10), (0, -1), (0, 1 << 60), ("x", 1), (None, None), (1 << 70, 1)):
        assert attacker.refused(op="read", handle=handle, offset=offset, count=count)
    others: list[Any] = [handle + 1, -1, 0, "1", None, [], 1 << 80]
    for other in others:
        assert attacker.refused(op="read", handle=other, offset=0, count=1)
        assert attacker.refused(op="close", handle=other)
    # A file that was opened for reading is not written to, even by its handle.
    attacker.peer.notify(Service.FILES, {"op": "write", "handle": handle, "offset": 0}, [b"overwritten"])
    attacker.peer.notify(Service.FILES, {"op": "truncate", "handle": handle, "size": 0})
    assert "not open for writing" in attacker.refused(op="close", handle=handle)
    assert (attacker.folder / "data/big").read_bytes() == bytes(3 << 20)


def test_the_number_of_open_files_is_limited(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_HANDLES <= 4096
    monkeypatch.setattr("remotegpu_offload.files.server.MOST_HANDLES", 20)
    before = len(list(Path("/proc/self/fd").iterdir()))
    path = f"{attacker.folder}/out/new"
    flags = os.O_WRONLY | os.O_CREAT
    handles = [attacker.ask(op="open", path=path, flags=flags).header["handle"] for _ in range(20)]
    assert "20 files of the client open" in attacker.refused(op="open", path=path, flags=flags)
    for handle in handles:
        attacker.ask(op="close", handle=handle)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_only_regular_files_are_opened(attacker: Attacker) -> None:
    os.mkfifo(attacker.folder / "data/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(attacker.folder / "out/socket"))
        for name, flags in (("data/pipe", os.O_RDONLY), ("out/socket", os.O_RDWR), ("data", os.O_RDONLY)):
            assert attacker.refused(op="open", path=f"{attacker.folder}/{name}", flags=flags)


def test_modes_have_no_special_bits(attacker: Attacker) -> None:
    path = f"{attacker.folder}/out/program"
    attacker.ask(
        op="close", handle=attacker.ask(op="open", path=path, flags=os.O_CREAT | 1, mode=0o7777).header["handle"]
    )
    attacker.ask(op="chmod", path=path, mode=0o7777)
    assert Path(path).stat().st_mode & 0o7000 == 0
    attacker.ask(op="mkdir", path=f"{attacker.folder}/out/folder", mode=0o7777)
    assert (attacker.folder / "out/folder").stat().st_mode & 0o7000 == 0


def test_links_are_removed_and_renamed_themselves(attacker: Attacker) -> None:
    (attacker.folder / "out/link").symlink_to(attacker.folder.parent / "outside/secret")
    attacker.ask(op="rename", path=f"{attacker.folder}/out/link", to=f"{attacker.folder}/out/link2")
    attacker.ask(op="remove", path=f"{attacker.folder}/out/link2")
    assert (attacker.folder.parent / "outside/secret").read_text() == SECRET
    assert attacker.refused(op="symlink", path=f"{attacker.folder}/out/link", to="/")


def test_a_folder_that_is_exchanged_while_a_file_is_opened(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment between the check and the opening, made long."""
    victim = attacker.folder / "out/deep"
    victim.mkdir()
    (victim / "secret").write_text("harmless")
    real_open = os.open

    def exchanged(path: Any, *arguments: Any, **keywords: Any) -> int:
        if path == str(victim):
            victim.rename(attacker.folder / "out/was")
            victim.symlink_to(attacker.folder.parent / "outside")
        return real_open(path, *arguments, **keywords)

    monkeypatch.setattr(os, "open", exchanged)
    assert attacker.refused(op="open", path=f"{victim}/secret", flags=os.O_RDONLY)
    monkeypatch.setattr(os, "open", real_open)
    victim.unlink()
    (attacker.folder / "out/was").rename(victim)

    # The same with a folder above, which opening the last one does not show.
    (victim / "er").mkdir()
    (attacker.folder.parent / "outside/er").mkdir()
    (attacker.folder.parent / "outside/er/secret").write_text(SECRET)

    def exchanged_above(path: Any, *arguments: Any, **keywords: Any) -> int:
        if path == f"{victim}/er":
            victim.rename(attacker.folder / "out/was")
            victim.symlink_to(attacker.folder.parent / "outside")
        return real_open(path, *arguments, **keywords)

    monkeypatch.setattr(os, "open", exchanged_above)
    assert "changed while it was being opened" in attacker.refused(op="open", path=f"{victim}/er/secret", flags=0)
    assert attacker.refused(op="open", path=f"{victim}/er/new", flags=os.O_WRONLY | os.O_CREAT)
    assert not (attacker.folder.parent / "outside/er/new").exists()


def test_a_file_that_becomes_a_link_is_not_followed(attacker: Attacker) -> None:
    """A local program of the client exchanges a file and a link all the time."""
    path = attacker.folder / "out/file"
    target = attacker.folder.parent / "outside/secret"
    ended = threading.Event()

    def exchange() -> None:
        spare = attacker.folder / "spare"
        while not ended.is_set():
            spare.symlink_to(target)
            spare.rename(path)
            spare.write_text("harmless")
            spare.rename(path)

    path.write_text("harmless")
    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        seen = set()
        for _ in range(300):
            reply = attacker.ask(op="open", path=str(path), flags=os.O_RDONLY)
            seen.add(bytes(reply.buffers[0]) if reply.buffers else b"")
            reply = attacker.ask(op="open", path=str(path), flags=os.O_WRONLY | os.O_TRUNC)
            if "handle" in reply.header:
                attacker.ask(op="close", handle=reply.header["handle"])
    finally:
        ended.set()
        thread.join()
    assert seen <= {b"harmless", b""}
    assert target.read_text() == SECRET


def test_standard_input_is_read_only_as_far_as_was_asked(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    before = os.dup(0)
    os.dup2(reading, 0)
    try:
        os.write(writing, b"abcdef")
        assert bytes(attacker.ask(Service.STDIO, op="read", count=2).buffers[0]) == b"ab"
        assert bytes(attacker.ask(Service.STDIO, op="read", count=1 << 60).buffers[0]) == b"cdef"
    finally:
        os.dup2(before, 0)
        for descriptor in (before, reading, writing):
            os.close(descriptor)
