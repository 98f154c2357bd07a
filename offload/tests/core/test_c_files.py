"""Files of the client for libraries that open paths in C: as locally, and nothing lost or broken at the client."""

from __future__ import annotations

import errno
import os
import sqlite3
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_local import peer_pair
from offload_programs import Project, same

from remotegpu_offload.code.link import Link
from remotegpu_offload.files.areas import Areas
from remotegpu_offload.files.cache import Cache
from remotegpu_offload.files.databases import Databases
from remotegpu_offload.files.journal import change, count_on, journal
from remotegpu_offload.files.layer import Layer
from remotegpu_offload.files.remote import RemoteFiles
from remotegpu_offload.files.rules import rules
from remotegpu_offload.files.server import FileServer

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.write("remotegpu.yaml", 'version: 1\nfiles: {read: ["./data/**"], write: ["./out/**"]}\n')
    for name in ("data", "out"):
        (made.folder / name).mkdir()
    return made


def both(project: Project, source: str) -> dict[str, bytes]:
    """Runs the program here and there; the result is what the run there wrote, the local run's files are gone."""
    project.write("main.py", textwrap.dedent(source))
    local = project.local("main.py")
    assert local.returncode == 0, local.stderr
    project.take("out")
    (project.folder / "out").mkdir()
    same(local, project.offloaded("main.py"))
    return project.files("out")


DATABASES = """
import sqlite3
from pathlib import Path

data = sqlite3.connect("data/people.db")
print(data.execute("SELECT name, age FROM people ORDER BY age").fetchall())
print(sqlite3.connect("file:data/people.db?mode=ro", uri=True).execute("SELECT count(*) FROM people").fetchone())

class Mine(sqlite3.Connection):
    def ask(self, text):
        return self.execute(text).fetchall()

with sqlite3.connect("out/new.db", factory=Mine) as made:
    made.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, v TEXT, b BLOB)")
    made.executemany("INSERT INTO t (v, b) VALUES (?, ?)", ((str(n) * 50, bytes(n)) for n in range(1000)))
print(made.ask("SELECT count(*), sum(length(b)) FROM t"), type(made).__name__, made.total_changes)
# Seen by who opens the file, while the connection is open.
print(Path("out/new.db").read_bytes()[:15], sorted(path.name for path in Path("out").iterdir()))
made.row_factory = sqlite3.Row
print(dict(made.execute("SELECT n, v FROM t WHERE n = 3").fetchone()))
try:
    with made:
        made.execute("DELETE FROM t")
        raise KeyError("rolled back")
except KeyError:
    print(made.execute("SELECT count(*) AS c FROM t").fetchone()["c"])
other = sqlite3.connect(Path("out/new.db"))
cursor = other.cursor()
cursor.execute("UPDATE t SET v = 'changed' WHERE n < 10")
try:
    sqlite3.connect("out/new.db", timeout=0).execute("DELETE FROM t")
except sqlite3.OperationalError as error:
    print(error)
other.commit()
print(made.execute("SELECT count(*) FROM t WHERE v = 'changed'").fetchone()[0])
other.execute("DROP TABLE t")
print("never committed")
other.execute("BEGIN")
other.execute("CREATE TABLE lost (x)")
other.close()
made.close()

auto = sqlite3.connect(b"out/auto.db", isolation_level=None)
auto.executescript("PRAGMA user_version = 7; CREATE TABLE a (x); INSERT INTO a VALUES (1), (2);")
auto.execute("INSERT INTO a VALUES (3)")
log = sqlite3.connect("out/log.db", isolation_level=None)
print(log.execute("PRAGMA journal_mode = WAL").fetchone())
log.execute("CREATE TABLE l (x)")
for n in range(50):
    log.execute("INSERT INTO l VALUES (?)", (n,))
print(sqlite3.connect(":memory:").execute("SELECT 1").fetchone())
for wrong in ("data/none/x.db", "out/none/x.db"):
    try:
        sqlite3.connect(wrong).execute("SELECT 1")
    except sqlite3.OperationalError as error:
        print(str(error)[:28])
"""


def rows(path: Path, text: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return connection.execute(text).fetchall()


def people(path: Path, count: int = 3) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE people (name TEXT, age INT)")
        connection.executemany("INSERT INTO people VALUES (?, ?)", ((f"name {n}", n) for n in range(count)))


def test_databases(project: Project) -> None:
    people(project.folder / "data/people.db")
    both(project, DATABASES)
    out = project.folder / "out"
    # Both of these were never closed by the program.
    assert rows(out / "auto.db", "SELECT * FROM a") == [(1,), (2,), (3,)]
    assert rows(out / "log.db", "SELECT count(*), sum(x) FROM l") == [(50, 1225)]
    assert rows(out / "new.db", "SELECT name FROM sqlite_master") == []
    assert not list(out.glob("*-journal"))


def test_what_may_not_be_written_says_why(project: Project) -> None:
    people(project.folder / "data/people.db")
    project.write(
        "main.py",
        "import sqlite3\nc = sqlite3.connect('data/people.db')\nprint(c.execute('SELECT 1').fetchone())\n"
        "c.execute('CREATE TEMP TABLE mine AS SELECT * FROM people')\nc.execute('DELETE FROM people')\n",
    )
    done = project.offloaded("main.py")
    assert done.returncode == 1
    assert done.stdout == "(1,)\n"
    said = done.stderr.splitlines()
    assert said[-2] == "sqlite3.OperationalError: attempt to write a readonly database"
    assert said[-1].startswith("remotegpu: files.write of the client's remotegpu.yaml does not name it: add it there")
    assert rows(project.folder / "data/people.db", "SELECT count(*) FROM people") == [(3,)]


HDF5 = """
import os
from pathlib import Path

import h5py
import numpy as np

with h5py.File("data/in.h5") as file:
    print(file, file.filename, file.mode, sorted(file), int(file["x"][::7].sum()), file["g/y"][1], file.attrs["a"])
for mode in ("w", "a", "r+", "r"):
    with h5py.File(Path("out/modes.h5"), mode) as file:
        print(mode, file.mode, sorted(file))
        if mode != "r":
            file.create_dataset(mode, data=np.arange(2000.0), chunks=(100,), compression="gzip")
        else:
            print([float(data[:].sum()) for data in file.values()])
with h5py.File("out/new.h5", "a") as file:
    file["z"] = 1
for name, mode in (("out/new.h5", "x"), ("out/new.h5", "w-"), ("out/none.h5", "r+"), ("data/none.h5", "r")):
    try:
        h5py.File(name, mode)
    except OSError as error:
        print(type(error).__name__)

class Mine(h5py.File):
    pass

with Mine("out/mine.h5", "w") as mine:
    mine["a"] = np.arange(500_000)
print(isinstance(mine, h5py.File), bool(mine))
flushed = h5py.File("out/flushed.h5", "w")
flushed["q"] = np.arange(10)
flushed.flush()
print(h5py.File(os.path.abspath("out/new.h5"))["z"][()], Path("out/flushed.h5").read_bytes()[1:4])
left = h5py.File("out/left.h5", "w")
left["kept"] = [1, 2, 3]
"""

HDF5_CONTENT = """
import h5py
from pathlib import Path
for path in sorted(Path("out").iterdir()):
    with h5py.File(path) as file:
        print(path, [(name, data[()].tolist()) for name, data in sorted(file.items())])
"""


def test_hdf5(project: Project) -> None:
    project.write(
        "make.py",
        "import h5py, numpy as np\nwith h5py.File('data/in.h5', 'w') as f:\n"
        "    f['x'] = np.arange(3_000_000); f['g/y'] = np.ones((3, 4)); f.attrs['a'] = 'b'\n",
    )
    project.write("read.py", HDF5_CONTENT)
    project.write("main.py", HDF5)
    assert project.local("make.py").returncode == 0
    local = project.local("main.py")
    assert local.returncode == 0, local.stderr
    content = project.local("read.py")
    assert len(content.stdout.splitlines()) == 5, content.stderr
    project.take("out")
    (project.folder / "out").mkdir()
    same(local, project.offloaded("main.py"))
    same(content, project.local("read.py"))


def test_functions_in_the_acceptor_open_them_too(project: Project) -> None:
    project.write(
        "remotegpu.yaml",
        'version: 1\noffload: [{function: steps.work}]\nfiles: {read: ["./data/**"], write: ["./out/**"]}\n',
    )
    people(project.folder / "data/people.db")
    project.write(
        "steps.py",
        """
import os
import sqlite3

import h5py

def work():
    ages = sqlite3.connect("data/people.db").execute("SELECT age FROM people ORDER BY age").fetchall()
    with sqlite3.connect("out/x.db") as made:
        made.execute("CREATE TABLE t (x)")
        made.executemany("INSERT INTO t VALUES (?)", ages)
    with h5py.File("out/x.h5", "w") as file:
        file["ages"] = [age for age, in ages]
    return os.getpid()
""",
    )
    project.write(
        "main.py",
        "import os, sqlite3, h5py, steps\n"
        "print(steps.work() == os.getpid())\n"
        "print(sqlite3.connect('out/x.db').execute('SELECT * FROM t').fetchall(), h5py.File('out/x.h5')['ages'][:])\n",
    )
    done = project.offloaded("main.py", split="rules")
    assert done.stdout == "False\n[(0,), (1,), (2,)] [0 1 2]\n", done.stderr


class Client:
    """Both halves in this process; `cut` ends the connection between them."""

    def __init__(self, folder: Path, layer: Layer, cut: Callable[[], None]) -> None:
        self.folder = folder
        self.layer = layer
        self.cut = cut
        self.connect = Databases(layer).connect

    def trips(self) -> int:
        counters = self.layer.remote.counters
        return sum(count for name, count in counters.items() if not name.startswith("bytes"))


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Client]:
    for name in ("client/data", "client/out", "cache"):
        (tmp_path / name).mkdir(parents=True)
    folder = tmp_path / "client"
    with peer_pair(start=False) as (client, acceptor):
        FileServer(rules(["./data/*.db"], ["./out/**"], str(folder)), str(folder)).attach(client)
        client.start()
        acceptor.start()
        remote = RemoteFiles(Link(acceptor, ""), Cache(str(tmp_path / "cache"), 64 << 20))
        layer = Layer(remote, Areas([str(folder)], []), str(folder))
        layer.real = {"open": open}
        yield Client(folder, layer, client.close)


def test_a_commit_sends_the_pages_that_changed(here: Client) -> None:
    people(here.folder / "out/large.db", 50_000)
    size = (here.folder / "out/large.db").stat().st_size
    connection = here.connect("out/large.db")
    trips = here.trips()
    assert connection.execute("SELECT count(*) FROM people").fetchone() == (50_000,)
    assert here.trips() == trips
    connection.execute("UPDATE people SET age = -1 WHERE rowid = 77")
    sent = here.layer.remote.counters["bytes_written"]
    assert here.trips() == trips
    connection.commit()
    # Old and new, of one page of the table and the first of the file.
    assert here.layer.remote.counters["bytes_written"] - sent < 6 * 4096 < size / 10
    assert here.trips() - trips <= 7
    trips = here.trips()
    connection.commit()
    assert here.trips() == trips
    assert rows(here.folder / "out/large.db", "SELECT rowid FROM people WHERE age = -1") == [(77,)]
    connection.close()
    # Unchanged since: looked at, and not fetched again.
    read = here.layer.remote.counters["bytes_read"]
    with closing(here.connect("out/large.db")) as connection:
        assert connection.execute("SELECT age FROM people WHERE rowid = 77").fetchone() == (-1,)
    assert here.layer.remote.counters["bytes_read"] == read


def test_changes_of_others_are_not_overwritten(here: Client) -> None:
    file = here.folder / "out/shared.db"
    people(file)
    mine = here.connect("out/shared.db")
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("INSERT INTO people VALUES ('other', 99)")
    mine.execute("DELETE FROM people")
    with pytest.raises(sqlite3.OperationalError):
        mine.commit()
    with pytest.raises(sqlite3.OperationalError):
        mine.close()
    assert rows(file, "SELECT count(*) FROM people") == [(4,)]
    # Opened anew, it is what the other made.
    with closing(here.connect("out/shared.db")) as mine, mine:
        mine.execute("DELETE FROM people WHERE name = 'other'")
    assert rows(file, "SELECT count(*) FROM people") == [(3,)]


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_database_in_use_is_read_as_it_is_and_not_written(here: Client, mode: str) -> None:
    file = here.folder / "out/busy.db"
    people(file, 5000)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute(f"PRAGMA journal_mode = {mode}")
        # So that the transaction that is not committed reaches the file.
        other.execute("PRAGMA cache_size = 1")
        other.execute("INSERT INTO people VALUES ('committed', -1)")
        other.execute("BEGIN")
        other.execute("UPDATE people SET age = age + 100000")
        mine = here.connect("out/busy.db")
        assert mine.execute("SELECT count(*), max(age) FROM people").fetchone() == (5001, 4999)
        with pytest.raises(sqlite3.OperationalError) as refused:
            mine.execute("DELETE FROM people")
        assert refused.value.sqlite_errorname == "SQLITE_READONLY"
        assert len(refused.value.__notes__) == 1, "why it is so"
        mine.close()
        other.execute("ROLLBACK")
    assert rows(file, "SELECT count(*) FROM people") == [(5001,)]


def test_a_rule_for_the_database_file_is_enough_to_read_it(here: Client) -> None:
    people(here.folder / "data/alone.db")
    with closing(here.connect("data/alone.db")) as connection:
        assert connection.execute("SELECT count(*) FROM people").fetchone() == (3,)
    with pytest.raises(sqlite3.OperationalError, match=r"secret\.txt: files\.read\b"):
        here.connect("data/secret.txt")
    with pytest.raises(sqlite3.OperationalError, match=r"data/none\.db: files\.write\b"):
        here.connect("data/none.db")
    with pytest.raises(sqlite3.OperationalError, match=os.strerror(errno.ENOENT)):
        here.connect("file:out/none.db?mode=rw", uri=True)
    assert not (here.folder / "data/none.db").exists()
    assert not (here.folder / "out/none.db").exists()


def test_a_lost_client_is_an_error_and_no_half_transaction(here: Client) -> None:
    people(here.folder / "out/lost.db", 2000)
    connection = here.connect("out/lost.db")
    connection.execute("UPDATE people SET age = 0")
    here.cut()
    with pytest.raises((sqlite3.Error, OSError, RuntimeError)):
        connection.commit()
    assert rows(here.folder / "out/lost.db", "SELECT count(*) FROM people WHERE age = 0") == [(1,)]


STATEMENTS = [
    "UPDATE t SET v = printf('%0200d', n * 7919) WHERE n % 3 = 0",
    "DELETE FROM t WHERE n > 40",
    "INSERT INTO t (v) SELECT printf('%0900d', n) FROM t",
    "CREATE INDEX IF NOT EXISTS i ON t (v)",
    "VACUUM",
    "DROP TABLE t",
]


@settings(deadline=None, max_examples=30)
@given(
    page=st.sampled_from([512, 4096, 65536]),
    mode=st.sampled_from(["DELETE", "WAL"]),
    filled=st.booleans(),
    statements=st.lists(st.sampled_from(STATEMENTS[:-1]), max_size=4, unique=True),
    last=st.sampled_from(STATEMENTS),
    share=st.floats(0, 1),
)
def test_a_change_that_is_cut_off_is_undone_by_sqlite(
    tmp_path_factory: pytest.TempPathFactory,
    page: int,
    mode: str,
    filled: bool,
    statements: list[str],
    last: str,
    share: float,
) -> None:
    """Every prefix of what is sent leaves the database as before, once SQLite has opened it."""
    folder = tmp_path_factory.mktemp("journal")
    source, before, after = folder / "source.db", folder / "before.db", folder / "after.db"
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        connection.executescript(f"PRAGMA synchronous = OFF; PRAGMA page_size = {page}; PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, v)")
        connection.executemany("INSERT INTO t (v) VALUES (?)", ((f"{n:300}",) for n in range(60)))
        for statement in statements:
            connection.execute(statement)
        before.touch()
        if filled:
            snapshot(connection, before)
        connection.execute(last)
        snapshot(connection, after)
    wanted = dump(before)
    old, new = os.open(before, os.O_RDONLY), os.open(after, os.O_RDWR)
    try:
        count_on(old, new)
        difference = change(old, new)
        steps: list[tuple[int, bytes]] = [(offset, os.pread(new, count, offset)) for offset, count in difference.runs]
        undo = b"".join(journal(difference, old))
    finally:
        os.close(old)
        os.close(new)
    # What reached the client: of the journal a part and nothing else, or all of it and a part of the rest.
    sent = int(share * (len(undo) + sum(len(piece) for _, piece in steps)))
    torn = folder / "torn.db"
    content = bytearray(before.read_bytes())
    (folder / "torn.db-journal").write_bytes(undo[:sent])
    left = max(0, sent - len(undo))
    for offset, piece in steps:
        content[offset : offset + len(piece[:left])] = piece[:left]
        left -= len(piece[:left])
    torn.write_bytes(content)
    assert dump(torn) == wanted
    # And all of it, with the journal gone, is the version after.
    whole = folder / "whole.db"
    content = bytearray(before.read_bytes())
    for offset, piece in steps:
        content[offset : offset + len(piece)] = piece
    whole.write_bytes(content[: difference.size_after])
    assert whole.read_bytes() == after.read_bytes()
    assert dump(whole) == dump(after)


def snapshot(connection: sqlite3.Connection, path: Path) -> None:
    with closing(sqlite3.connect(path)) as target:
        target.execute("PRAGMA synchronous = OFF")
        connection.backup(target)


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return list(connection.iterdump())
