"""SQLite databases of the client. SQLite opens files itself, so it gets a twin in the session's folder.

The twin is a copy of the whole database. After each transaction that was committed to it, the pages that changed go to
the client, under the protection of a journal there (see `journal.py`): when a session is lost in the middle of that,
the next program that opens the database finds it as it was before the transaction. SQLite's locks do not reach the
client; that another program changed the database meanwhile is noticed, and what would overwrite it is refused.

Not covered: ATTACH and VACUUM INTO, whose names SQLite itself opens, and `sqlite3.Connection` that is called directly.
"""

import contextlib
import errno
import os
import sqlite3
import tempfile
import threading
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from remotegpu_offload.files.journal import change, count_on, differs, journal
from remotegpu_offload.files.paged import PagedFile

if TYPE_CHECKING:
    from remotegpu_offload.files.layer import Layer

_COMPANIONS: Final = ("-wal", "-journal")
_PIECE: Final = 1 << 20
_connect: Final = sqlite3.connect


class Twin:
    """One database of the client in this process, shared by the connections to it."""

    def __init__(self, layer: "Layer", path: str) -> None:
        self.path = path
        folder = tempfile.mkdtemp(dir=layer.remote.cache.folder, prefix="database-")
        self.file = os.path.join(folder, os.path.basename(path))
        # Why nothing is written to the client; empty if it is.
        self.read_only = ""
        self.connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self.lock = threading.RLock()
        self._layer = layer
        self._remote = layer.remote
        self._handle = 0
        # The client's version of the file, open for reading, and by what it is recognized there.
        self._base = -1
        self._seen: tuple[int, ...] = ()
        self._published: list[Any] = []

    def fetch(self, create: bool) -> None:
        """Be what the client has now. Raises OSError."""
        try:
            seen = _identity(self._remote.stat(self.path))
        except FileNotFoundError:
            if not create:
                raise
            PagedFile(self._remote, self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL).close()
            seen = _identity(self._remote.stat(self.path))
        if self._base >= 0 and (self.connections or seen == self._seen):
            return
        self._release()
        self._seen = seen
        self.read_only = ""
        for suffix in _COMPANIONS:
            self._fetch_companion(suffix)
        self._base = self._copy(self.path, self.file)
        # What a program at the client left unfinished is finished here, where that may be written.
        with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(self.file)) as connection:
            connection.execute("PRAGMA schema_version").fetchone()
        if not self.read_only:
            try:
                self._handle = self._remote.ask("open", self.path, flags=os.O_WRONLY, mode=0).header["handle"]
            except OSError as error:
                self.read_only = f"{error.strerror} ({self.path})"
        self._published = self._state()

    def publish(self, connection: sqlite3.Connection) -> None:
        """Send what was committed since the last time. Raises sqlite3.OperationalError if that is refused."""
        with self.lock:
            state = self._state()
            if state == self._published:
                return
            fresh = self._snapshot(connection)
            try:
                self._send(fresh)
            except OSError as error:
                os.close(fresh)
                raise sqlite3.OperationalError(
                    f"the change was not written to the client: {error.strerror} ({error.filename or self.path})"
                ) from error
            os.close(self._base)
            self._base, self._published = fresh, state

    def forget(self, connection: sqlite3.Connection) -> None:
        """It was closed."""
        with self.lock:
            self.connections.discard(connection)

    def _fetch_companion(self, suffix: str) -> None:
        path = self.path + suffix
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file + suffix)
        try:
            if not self._remote.stat(path).st_size:
                return
            os.close(self._copy(path, self.file + suffix))
            self.read_only = (
                f"{path} says that another program has the database open, or ended in the middle of a change: "
                "end that program, or open the database once at the client"
            )
        except FileNotFoundError:
            pass
        except PermissionError as error:
            # A rule for the database alone is enough to read it.
            self.read_only = f"{error.strerror} ({path})"

    def _copy(self, path: str, file: str) -> int:
        """Another descriptor of the content, open for reading."""
        with self._layer.open(path, "rb", 0) as source, open(file, "wb") as target:
            fd = source.fileno()
            offset = 0
            while content := os.pread(fd, _PIECE, offset):
                target.write(content)
                offset += len(content)
            return os.dup(fd)

    def _state(self) -> list[Any]:
        """Is another after each commit: the change counter, or with a write-ahead log what its index says."""
        found: list[Any] = []
        for name, count in ((self.file, 100), (self.file + "-shm", 48), (self.file + "-wal", 32)):
            try:
                with open(name, "rb", 0) as file:
                    status = os.fstat(file.fileno())
                    found.append((file.read(count), status.st_size if name.endswith("-wal") else 0))
            except FileNotFoundError:
                found.append(None)
        return found

    def _snapshot(self, connection: sqlite3.Connection) -> int:
        fd, name = tempfile.mkstemp(dir=os.path.dirname(self.file), prefix="snapshot-")
        try:
            with contextlib.closing(_connect(name)) as target:
                target.execute("PRAGMA synchronous=OFF")
                sqlite3.Connection.backup(connection, target)
        except BaseException:
            os.close(fd)
            raise
        finally:
            os.unlink(name)
        return fd

    def _send(self, fresh: int) -> None:
        if not differs(self._base, fresh):
            return
        if self.read_only:
            raise PermissionError(errno.EACCES, self.read_only, self.path)
        if _identity(self._remote.stat(self.path)) != self._seen:
            raise OSError(errno.EBUSY, "another program changed the database since it was opened here", self.path)
        count_on(self._base, fresh)
        difference = change(self._base, fresh)
        with PagedFile(self._remote, self.path + "-journal", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as kept:
            for record in journal(difference, self._base):
                kept.write(record)
        for offset, count in difference.runs:
            content = os.pread(fresh, count, offset)
            self._remote.counters["bytes_written"] += len(content)
            self._remote.tell("write", [content], handle=self._handle, offset=offset)
        if difference.size_after != difference.size_before:
            self._remote.tell("truncate", handle=self._handle, size=difference.size_after)
        self._remote.ask("close", handle=self._handle, keep=True)
        self._remote.ask("remove", self.path + "-journal")
        self._seen = _identity(self._remote.stat(self.path))

    def _release(self) -> None:
        if self._base >= 0:
            os.close(self._base)
            self._base = -1
        if self._handle:
            self._remote.tell("close", handle=self._handle)
            self._handle = 0


class Databases:
    """`connect` is `sqlite3.connect` for the paths of one layer."""

    def __init__(self, layer: "Layer") -> None:
        self._layer = layer
        self._twins: dict[str, Twin] = {}
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
        """As `sqlite3.connect`. Raises sqlite3.OperationalError if the client's rules or files do not allow it."""
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
        mode = next((each[5:] for each in query if each.startswith("mode=")), "rwc")
        with self._lock:
            twin = self._twins.get(theirs) or Twin(self._layer, theirs)
            with twin.lock:
                try:
                    twin.fetch(create=mode == "rwc")
                except OSError as error:
                    raise sqlite3.OperationalError(
                        f"unable to open database file: {theirs}: {error.strerror}"
                    ) from error
                self._twins[theirs] = twin
                if twin.read_only:
                    query = [each for each in query if not each.startswith(("mode=", "immutable="))]
                    query += ["mode=ro", "immutable=1"]
                target = f"file:{quote(twin.file)}" + ("?" + "&".join(query) if query else "")
                made: Any = _connect(target, factory=_watched(factory), uri=True, **more)
                made.remotegpu_twin = twin
                twin.connections.add(made)
        return made  # type: ignore[no-any-return]


def _named(database: Any, uri: bool) -> tuple[Any, list[str]]:
    """The path, and the parameters of a URI."""
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


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _settle(connection: Any) -> None:
    """After anything that may have committed."""
    twin = connection.remotegpu_twin
    if twin is not None and not connection.in_transaction:
        twin.publish(connection)


class _Cursor:
    """Publishes after each statement that was its own transaction."""

    def execute(self, *arguments: Any) -> Any:
        return self._run("execute", *arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self._run("executemany", *arguments)

    def executescript(self, *arguments: Any) -> Any:
        return self._run("executescript", *arguments)

    def _run(self, name: str, *arguments: Any) -> Any:
        base: Any = super()
        try:
            result = getattr(base, name)(*arguments)
        except sqlite3.ProgrammingError:
            # Closed, or of another thread: nothing was done.
            raise
        except sqlite3.Error as error:
            connection: Any = self.connection  # type: ignore[attr-defined]
            twin = connection.remotegpu_twin
            if twin is not None and twin.read_only and "readonly" in str(error):
                error.add_note(f"remotegpu: {twin.read_only}")
            # Of a script, what came before may be committed.
            _settle(connection)
            raise
        _settle(self.connection)  # type: ignore[attr-defined]
        return result


class _Connection:
    remotegpu_twin: Twin | None = None

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        base: Any = super()
        return base.cursor(_watched_cursor(factory) if isinstance(factory, type) else factory)

    def execute(self, *arguments: Any) -> Any:
        return self.cursor().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self.cursor().executemany(*arguments)

    def executescript(self, *arguments: Any) -> Any:
        return self.cursor().executescript(*arguments)

    def commit(self) -> None:
        base: Any = super()
        base.commit()
        if self.remotegpu_twin is not None:
            connection: Any = self
            self.remotegpu_twin.publish(connection)

    def __exit__(self, *error: Any) -> Any:
        base: Any = super()
        result = base.__exit__(*error)
        connection: Any = self
        if self.remotegpu_twin is not None:
            self.remotegpu_twin.publish(connection)
        return result

    def close(self) -> None:
        connection: Any = self
        base: Any = super()
        twin = self.remotegpu_twin
        try:
            if twin is not None and connection in twin.connections:
                if connection.in_transaction:
                    base.rollback()
                twin.publish(connection)
        finally:
            base.close()
            if twin is not None:
                twin.forget(connection)


@cache
def _watched(base: type) -> type:
    return _derived(_Connection, base)


@cache
def _watched_cursor(base: type) -> type:
    return _derived(_Cursor, base)


def _derived(mixin: type, base: type) -> type:
    """Calls itself what the class calls itself."""
    return type(base.__name__, (mixin, base), {"__module__": base.__module__, "__qualname__": base.__qualname__})
