"""File paging: rules, areas, round trips, what the client's disk has afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_local import peer_pair

from remotegpu_offload.code.link import Link
from remotegpu_offload.files.areas import Areas, areas_of
from remotegpu_offload.files.cache import BLOCK, Cache
from remotegpu_offload.files.paged import PagedFile
from remotegpu_offload.files.remote import RemoteFiles
from remotegpu_offload.files.rules import pattern, rules
from remotegpu_offload.files.server import FileServer

MB = 1 << 20


class Side:
    """Both halves in this process: the server on `client`, files opened through `remote`."""

    def __init__(self, folder: Path, remote: RemoteFiles, server: FileServer) -> None:
        self.folder = folder
        self.remote = remote
        self.server = server

    def open(self, name: str, flags: int = os.O_RDONLY) -> PagedFile:
        return PagedFile(self.remote, str(self.folder / name), flags)

    def trips(self) -> int:
        return sum(count for name, count in self.remote.counters.items() if not name.startswith("bytes"))


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    for name in ("client/data", "client/out", "cache"):
        (tmp_path / name).mkdir(parents=True)
    folder = tmp_path / "client"
    with peer_pair(start=False) as (client, acceptor):
        server = FileServer(rules(["./data/**"], ["./out/**"], str(folder)), str(folder))
        server.attach(client)
        client.start()
        acceptor.start()
        remote = RemoteFiles(Link(acceptor, ""), Cache(str(tmp_path / "cache"), 64 * MB))
        yield Side(folder, remote, server)


def test_a_small_file_is_one_round_trip(side: Side) -> None:
    (side.folder / "data/small").write_bytes(b"content")
    with side.open("data/small") as file:
        assert file.readall() == b"content"
    assert side.trips() == 1
    # Again: whether it is still the same, and no content.
    sent = side.server.counters["bytes_read"]
    with side.open("data/small") as file:
        assert file.readall() == b"content"
    assert side.trips() == 2
    assert side.server.counters["bytes_read"] == sent
    # Changed at the client: the open that follows sees it.
    (side.folder / "data/small").write_bytes(b"other content")
    with side.open("data/small") as file:
        assert file.readall() == b"other content"


def test_a_sequential_reader_is_read_ahead_for(side: Side) -> None:
    content = os.urandom(40 * MB + 17)
    (side.folder / "data/large").write_bytes(content)
    with side.open("data/large") as file:
        found = bytearray()
        piece = bytearray(MB // 4)
        while count := file.readinto(piece):
            found += piece[:count]
    assert found == content
    # One to open it with the first MiB, then 1, 2, 4, ... at most 16 MiB at a time.
    assert side.remote.counters["read"] <= 7
    before = side.trips()
    with side.open("data/large") as file:
        assert file.readall() == content
    assert side.trips() == before + 1


def test_a_reader_that_jumps_gets_what_it_reads(side: Side) -> None:
    content = os.urandom(20 * MB)
    (side.folder / "data/large").write_bytes(content)
    with side.open("data/large") as file:
        for at in (15 * MB + 5, 3 * MB - 2, 19 * MB):
            file.seek(at)
            piece = bytearray(10)
            assert file.readinto(piece) == 10
            assert piece == content[at : at + 10]
    assert side.server.counters["bytes_read"] < 8 * MB


@given(
    size=st.integers(0, 5 * BLOCK // 2),
    reads=st.lists(st.tuples(st.integers(0, 3 * BLOCK), st.integers(0, BLOCK + 5)), max_size=8),
)
def test_a_copy_has_the_bytes_that_were_asked_for(
    tmp_path_factory: pytest.TempPathFactory, size: int, reads: list[tuple[int, int]]
) -> None:
    content = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    cache = Cache(str(tmp_path_factory.mktemp("cache")), 1 << 30)
    copy = cache.take("x", [1], size)
    asked: list[tuple[int, int]] = []

    def fetch(offset: int, count: int) -> bytes:
        asked.append((offset, count))
        return content[offset : offset + count]

    for offset, count in reads:
        wanted = content[offset : offset + count]
        copy.need(offset, len(wanted), fetch)
        assert os.pread(copy.fd, len(wanted), offset) == wanted
    # No byte was fetched twice.
    blocks = [n for offset, count in asked for n in range(offset // BLOCK, -(-(offset + count) // BLOCK))]
    assert len(blocks) == len(set(blocks))
    copy.drop()


def test_writes_need_no_answer_until_the_file_is_closed(side: Side) -> None:
    with side.open("out/new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        for number in range(100):
            file.write(bytes([number]) * 1000)
        before = side.trips()
    assert before == 1
    assert side.trips() == 2
    assert (side.folder / "out/new").read_bytes() == b"".join(bytes([n]) * 1000 for n in range(100))


def test_the_error_of_a_write_comes_with_the_close(side: Side) -> None:
    file = side.open("out/new", os.O_WRONLY | os.O_CREAT)
    next(iter(side.server._open.values())).writable = False
    file.write(b"lost")
    with pytest.raises(OSError) as refused:  # noqa: PT011 - its number is checked
        file.close()
    assert refused.value.errno == errno.EBADF
    assert file.closed
    assert (side.folder / "out/new").read_bytes() == b""


def test_a_descriptor_is_a_whole_copy_and_is_written_back_where_it_changed(side: Side) -> None:
    content = os.urandom(5 * MB)
    (side.folder / "out/data").write_bytes(content)
    with side.open("out/data", os.O_RDWR) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, b"changed", 3 * MB)
        os.ftruncate(descriptor, 4 * MB + 10)
        before = side.server.counters["bytes_written"]
    expected = content[: 3 * MB] + b"changed" + content[3 * MB + 7 : 4 * MB + 10]
    assert (side.folder / "out/data").read_bytes() == expected
    # The block with the change, and the one that became shorter.
    assert side.server.counters["bytes_written"] - before <= MB + 10


def test_what_is_written_is_seen_before_the_file_is_closed_even_if_it_has_a_descriptor(side: Side) -> None:
    (side.folder / "out/data").write_bytes(b"0123456789")
    with side.open("out/data", os.O_RDWR) as file:
        os.fsync(file.fileno())
        file.seek(8)
        file.write(b"new and longer")
        with side.open("out/data") as other:
            assert other.read() == b"01234567new and longer"
        os.pwrite(file.fileno(), b"x", 0)
        os.ftruncate(file.fileno(), 10)
    assert (side.folder / "out/data").read_bytes() == b"x1234567ne"


def test_the_cache_keeps_to_its_limit(side: Side, tmp_path: Path) -> None:
    for number in range(12):
        (side.folder / f"data/{number}").write_bytes(bytes(10 * MB))
        with side.open(f"data/{number}") as file:
            file.readall()
    kept = sum(path.stat().st_size for path in (tmp_path / "cache").iterdir())
    assert 50 * MB <= kept <= 64 * MB
    # One that is open is not thrown out, and goes when it is closed.
    with side.open("data/3") as first:
        first.readall()
        for number in range(4, 12):
            with side.open(f"data/{number}") as file:
                file.readall()
        first.seek(0)
        assert first.readall() == bytes(10 * MB)


def test_a_file_that_shrinks_or_vanishes_while_it_is_read(side: Side) -> None:
    path = side.folder / "data/large"
    path.write_bytes(bytes(10 * MB))
    with side.open("data/large") as file:
        os.truncate(path, 2 * MB)
        file.seek(9 * MB)
        with pytest.raises(OSError) as shorter:  # noqa: PT011 - its number is checked
            file.readinto(bytearray(10))
        assert shorter.value.errno == errno.EIO
    path.write_bytes(bytes(10 * MB))
    with side.open("data/large") as file:
        path.unlink()
        # It is open there too.
        assert file.readall() == bytes(10 * MB)
    with pytest.raises(FileNotFoundError):
        side.open("data/large")


def test_errors_are_the_file_systems(side: Side) -> None:
    (side.folder / "data/folder").mkdir()
    (side.folder / "out/there").write_text("")
    cases: list[tuple[type[OSError], Any]] = [
        (FileNotFoundError, lambda: side.open("data/none")),
        (IsADirectoryError, lambda: side.open("data/folder")),
        (FileExistsError, lambda: side.open("out/there", os.O_WRONLY | os.O_CREAT | os.O_EXCL)),
        (NotADirectoryError, lambda: side.open("out/there/below", os.O_WRONLY | os.O_CREAT)),
        (PermissionError, lambda: side.open("data/small", os.O_WRONLY | os.O_CREAT)),
        (FileNotFoundError, lambda: side.remote.stat(str(side.folder / "data/none"))),
        (NotADirectoryError, lambda: side.remote.list(str(side.folder / "out/there"))),
    ]
    for kind, action in cases:
        with pytest.raises(kind) as caught:
            action()
        assert caught.value.filename
    assert not (side.folder / "data/small").exists()


def test_files_that_a_lost_acceptor_left_open_are_closed(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(3 * MB))
    before = len(list(Path("/proc/self/fd").iterdir()))
    with peer_pair(start=False) as (client, acceptor):
        server = FileServer(rules(["./*"], [], str(tmp_path)), str(tmp_path))
        server.attach(client)
        client.start()
        acceptor.start()
        remote = RemoteFiles(Link(acceptor, ""), Cache(str(tmp_path), 1 << 30))
        opened = [PagedFile(remote, str(tmp_path / "big"), os.O_RDONLY) for _ in range(5)]
        assert len(server._open) == 5
        for file in opened:
            file._handle = 0
            file.close()
        acceptor.close()
        client.closed.wait(60)
        # A second acceptor, as after a move.
        with peer_pair() as (other, _):
            server.attach(other)
        assert not server._open
    remote.cache.limit = 0
    remote.cache.take("another", [0], 0)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


# --- rules ---


def test_patterns(tmp_path: Path) -> None:
    for folder in ("data/deep/er", "data/.hidden", "other"):
        (tmp_path / folder).mkdir(parents=True)
    real = os.path.realpath(tmp_path)
    cases = {
        "./data/**": (["data", "data/x", "data/deep/er/x"], ["", "other", "data/.hidden", "data/.hidden/x", "dat"]),
        "./data": (["data", "data/x", "data/deep/x"], ["datax", "data/.env"]),
        "./data/": (["data", "data/x"], ["datax"]),
        "data/*.csv": (["data/a.csv"], ["data/deep/a.csv", "data", "data/a.csvx", "data/.csv", "data/.a.csv"]),
        "data/**/*.csv": (["data/a.csv", "data/deep/er/a.csv"], ["data/deep/a.txt", "data/.hidden/a.csv"]),
        "data/[ab]?": (["data/a1", "data/bx"], ["data/c1", "data/a", "data/a12"]),
        "data/.hidden/*": (["data/.hidden/x"], ["data/.hidden/.y", "data/x"]),
        "data/.*": (["data/.x"], ["data/x", "data/.x/y"]),
        "*.txt": (["a.txt"], ["deep/a.txt"]),
        "data/../other/**": (["other/x"], ["data/x"]),
    }
    for text, (yes, no) in cases.items():
        found = pattern(text, real)
        for name in yes:
            assert found.matches(os.path.normpath(f"{real}/{name}")), (text, name)
        for name in no:
            assert not found.matches(os.path.normpath(f"{real}/{name}")), (text, name)


def test_a_folder_that_is_a_link_is_meant_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "disk/data").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/data").symlink_to(tmp_path / "disk/data")
    found = rules(["./data/**"], [], str(tmp_path / "project"))
    assert found.may_read(str(tmp_path / "disk/data/x"))
    assert not found.may_read(str(tmp_path / "disk/other"))


def test_rules_read_what_they_write_and_look_at_what_leads_there(tmp_path: Path) -> None:
    found = rules(["data/in/*.csv"], ["out/**"], str(tmp_path))
    assert found.may_read(f"{tmp_path}/out/x")
    assert not found.may_write(f"{tmp_path}/data/in/a.csv")
    assert found.may_look(f"{tmp_path}/data/in")
    assert found.may_look(str(tmp_path))
    assert not found.may_look(f"{tmp_path}/data/other")


def test_whose_a_path_is(tmp_path: Path) -> None:
    areas = Areas(["/home/me/project", "/data"], ["/home/me/project/.venv", "/usr", "/data/own/deep"])
    for path, expected in {
        "/home/me/project": True,
        "/home/me/project/x/y": True,
        "/home/me/project/.venv/lib/x": False,
        "/home/me/project/.venv": False,
        "/home/me/projects": False,
        "/home/me": False,
        "/data/own": True,
        "/data/own/deep/x": False,
        "/usr/lib/x": False,
    }.items():
        assert areas.is_clients(path) is expected, path
        assert areas.is_clients(path) is expected, path
    everything = areas_of({"files": {"areas": ["/"]}, "code": {"main": "/srv/app/run.py"}}, ["/usr", "/proc"])
    assert everything.is_clients("/etc/hosts")
    assert not everything.is_clients("/usr/lib")
    assert everything.is_clients("/srv/app/x")
