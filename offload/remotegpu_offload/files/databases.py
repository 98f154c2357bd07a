"""SQLite databases of the client, read-only. SQLite opens files in C, so it gets a copy of the whole database.

Uncommitted changes of other programs at the client are not visible. A program that writes a database must run at the
client, or write other files through `open` or `h5py`. Not covered: ATTACH, whose files SQLite opens itself, and direct
calls of `sqlite3.Connection`.
"""

import contextlib
import os
import sqlite3
import tempfile
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from remotegpu_offload.files.layer import Layer

_COMPANIONS: Final = ("-wal", "-journal")
_PIECE: Final = 1 << 20
_connect: Final = sqlite3.connect
READ_ONLY: Final = (
    "remotegpu: databases of the client are copied to the acceptor, and only read there: write it in a part of the "
    "program that runs at the client"
)


class Databases:
    """Copies of databases. `connect` replaces `sqlite3.connect` for the paths of one layer."""

    def __init__(self, layer: "Layer") -> None:
        self._layer = layer
        # By path: the identity of the client's file, and the path of its copy.
        self._copies: dict[str, tuple[tuple[int, ...], str]] = {}
        self._lock = threading.Lock()

    def connect(
        self,
        database: Any,
        timeout: float = 5.0,
        detect_types: int = 0,
        isolation_level: Any = "",
        check_same_thread: bool = True,
        factory: Any = sqlite3.Connection,
        cached_statements: int = 128,
        uri: bool = False,
        **more: Any,
    ) -> sqlite3.Connection:
        """Replaces `sqlite3.connect`. A database of the client is opened read-only.

        Raises sqlite3.OperationalError if the client's rules or files do not allow it, or if the file does not exist.
        """
        more |= {
            "timeout": timeout,
            "detect_types": detect_types,
            "isolation_level": isolation_level,
            "check_same_thread": check_same_thread,
            "cached_statements": cached_statements,
        }
        name, query = _named(database, uri)
        theirs = None if name in (None, "", ":memory:") or "mode=memory" in query else self._layer.theirs(name)
        if theirs is None:
            own: sqlite3.Connection = _connect(database, factory=factory, uri=uri, **more)
            return own
        if not isinstance(factory, type):
            raise sqlite3.NotSupportedError("for a database of the client `factory` is a class")
        with self._lock:
            try:
                copy = self._copy(theirs)
            except OSError as error:
                refused = sqlite3.OperationalError(f"unable to open database file: {theirs}: {error.strerror}")
                if isinstance(error, FileNotFoundError):
                    refused.add_note(READ_ONLY)
                raise refused from error
        query = [each for each in query if not each.startswith(("mode=", "immutable="))]
        target = f"file:{quote(copy)}?" + "&".join([*query, "mode=ro", "immutable=1"])
        made: sqlite3.Connection = _connect(target, factory=_derived(_Connection, factory), uri=True, **more)
        return made

    def _copy(self, path: str) -> str:
        """Returns the path of a current copy of the client's file; copies it if necessary.

        The copy has the database's file name. Raises OSError.
        """
        status = self._layer.remote.stat(path)
        identity = status.st_ino, status.st_size, status.st_mtime_ns
        if path in self._copies and self._copies[path][0] == identity:
            return self._copies[path][1]
        folder = tempfile.mkdtemp(dir=self._layer.remote.cache.folder, prefix="database-")
        file = os.path.join(folder, os.path.basename(path))
        for suffix in _COMPANIONS:
            # A rule for the database alone is enough to read the database.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                self._fetch(path + suffix, file + suffix)
        self._fetch(path, file)
        # In the copy, SQLite applies transactions that a program has committed to its log, and rolls back unfinished
        # ones.
        with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(file)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        self._copies[path] = identity, file
        return file

    def _fetch(self, path: str, file: str) -> None:
        with self._layer.open(path, "rb", 0) as source, open(file, "wb") as target:
            while content := source.read(_PIECE):
                target.write(content)


def _named(database: Any, uri: bool) -> tuple[Any, list[str]]:
    """Returns the path and the URI parameters."""
    try:
        name = os.fsdecode(database)
    except TypeError:
        return None, []
    if not uri or not name.startswith("file:"):
        return name, []
    path, _, query = name[5:].partition("#")[0].partition("?")
    if path.startswith("//"):
        path = path[2:].removeprefix("localhost")
    return unquote(path), [each for each in query.split("&") if each]


class _Cursor:
    """Adds a note to the error of a write, with the reason why databases of the client are read-only."""

    def execute(self, *arguments: Any) -> Any:
        return self._run("execute", *arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self._run("executemany", *arguments)

    def executescript(self, *arguments: Any) -> Any:
        return self._run("executescript", *arguments)

    def _run(self, name: str, *arguments: Any) -> Any:
        base: Any = super()
        try:
            return getattr(base, name)(*arguments)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_READONLY:
                error.add_note(READ_ONLY)
            raise


class _Connection:
    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        base: Any = super()
        return base.cursor(_derived(_Cursor, factory) if isinstance(factory, type) else factory)

    def execute(self, *arguments: Any) -> Any:
        return self.cursor().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self.cursor().executemany(*arguments)

    def executescript(self, *arguments: Any) -> Any:
        return self.cursor().executescript(*arguments)


@cache
def _derived(mixin: type, base: type) -> type:
    """Returns a class derived from `mixin` and `base` with the name of `base`."""
    return type(base.__name__, (mixin, base), {"__module__": base.__module__, "__qualname__": base.__qualname__})
