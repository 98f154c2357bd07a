"""Files of the client for libraries that open paths in C: as locally, and nothing lost or broken at the client."""

from __future__ import annotations

import errno
import os
import sqlite3
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from offload_local import peer_pair
from offload_programs import Project, same

from remotegpu_offload.code.link import Link
from remotegpu_offload.files.areas import Areas
from remotegpu_offload.files.cache import Cache
from remotegpu_offload.files.databases import READ_ONLY, Databases
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

mine = sqlite3.connect(Path("data/people.db"), factory=Mine)
print(mine.ask("SELECT count(*), sum(age) FROM people"), type(mine).__name__, mine.total_changes)
mine.row_factory = sqlite3.Row
print(dict(mine.execute("SELECT * FROM people WHERE age = 1").fetchone()))
mine.execute("CREATE TEMP TABLE more AS SELECT age + 1 AS age FROM people")
print(mine.execute("SELECT max(age) AS oldest FROM more").fetchone()["oldest"])
with sqlite3.connect(":memory:") as own:
    own.execute("CREATE TABLE t (x)")
    own.executemany("INSERT INTO t VALUES (?)", ((n,) for n in range(3)))
    print(own.execute("SELECT * FROM t").fetchall())
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


@pytest.mark.parametrize("file", ["data/people.db", "out/people.db", "out/new.db"])
def test_nothing_is_written_and_the_error_says_why(project: Project, file: str) -> None:
    for name in ("data/people.db", "out/people.db"):
        people(project.folder / name)
    project.write("main.py", f"import sqlite3\nc = sqlite3.connect('{file}')\nc.execute('CREATE TABLE t (x)')\n")
    before = project.files(".")
    done = project.offloaded("main.py")
    assert done.returncode == 1 and READ_ONLY in done.stderr
    assert project.files(".") == before


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
    with h5py.File("out/x.h5", "w") as file:
        file["ages"] = [age for age, in ages]
    return os.getpid()
""",
    )
    project.write(
        "main.py",
        "import os, h5py, steps\nprint(steps.work() == os.getpid())\nprint(h5py.File('out/x.h5')['ages'][:])\n",
    )
    done = project.offloaded("main.py", split="rules")
    assert done.stdout == "False\n[0 1 2]\n", done.stderr


class Client:
    """Both halves in this process."""

    def __init__(self, folder: Path, layer: Layer) -> None:
        self.folder = folder
        self.layer = layer
        self.connect = Databases(layer).connect


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
        yield Client(folder, layer)


def test_a_database_is_fetched_again_when_it_has_changed(here: Client) -> None:
    file = here.folder / "out/large.db"
    people(file, 50_000)
    with closing(here.connect("out/large.db")) as connection:
        assert connection.execute("SELECT count(*) FROM people").fetchone() == (50_000,)
    read = here.layer.remote.counters["bytes_read"]
    with closing(here.connect("out/large.db")) as connection:
        assert connection.execute("SELECT age FROM people WHERE rowid = 77").fetchone() == (76,)
    assert here.layer.remote.counters["bytes_read"] == read
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("UPDATE people SET age = -1 WHERE rowid = 77")
    with closing(here.connect("out/large.db")) as connection:
        assert connection.execute("SELECT age FROM people WHERE rowid = 77").fetchone() == (-1,)


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_database_in_use_is_read_as_it_was_committed(here: Client, mode: str) -> None:
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
        assert refused.value.__notes__ == [READ_ONLY]
        mine.close()
        other.execute("ROLLBACK")
    assert rows(file, "SELECT count(*) FROM people") == [(5001,)]


def test_a_rule_for_the_database_file_is_enough_to_read_it(here: Client) -> None:
    people(here.folder / "data/alone.db")
    with closing(here.connect("data/alone.db")) as connection:
        assert connection.execute("SELECT count(*) FROM people").fetchone() == (3,)
    with pytest.raises(sqlite3.OperationalError, match=r"secret\.txt: files\.read\b"):
        here.connect("data/secret.txt")
    with pytest.raises(sqlite3.OperationalError, match=os.strerror(errno.ENOENT)):
        here.connect("file:out/none.db?mode=rw", uri=True)
    assert not (here.folder / "out/none.db").exists()
