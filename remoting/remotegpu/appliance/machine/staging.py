"""The appliance's own folder: files that other users have to read, and the scratch folders of sessions."""

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from remotegpu.appliance.handover import State, kept, taken

_PREFIX: Final = "remotegpu-appliance-"
_log = logging.getLogger(__name__)


class StagingError(Exception):
    """The temporary folder cannot be used; the message says why and what to do."""


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StagingError(
            f"the temporary folder cannot be used ({reason}): make room there, or name a writable one in TMPDIR"
        ) from None


class Staging:
    """A folder in the machine's temporary one, made at its first use.

    It also has copies of programs and libraries that another uid cannot read in their place, as under /root.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock: int | None = None

    @_explained()
    def readable(self, path: Path) -> Path:
        """Returns `path` itself if every user can read it (or no other user will), else a copy."""
        if os.geteuid() != 0 or _readable_by_all(path):
            return path
        copy = self.folder(path.parent.name) / path.name
        # Next to a running one, as after a handover.
        new = copy.with_name(f"{copy.name}.new")
        shutil.copyfile(path, new)
        new.chmod(0o755)
        return new.rename(copy)

    @_explained()
    def folder(self, name: str) -> Path:
        """Returns a folder that every user can read, and that ends with the appliance."""
        if self._folder is None:
            self._folder, self._lock = _make()
            self._folder.chmod(0o755)
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        return folder

    def private(self, name: str) -> Path:
        """Returns a folder that no other user can look into."""
        folder = self.folder(name)
        folder.chmod(0o700)
        return folder

    def handed(self) -> State:
        return {"folder": str(self._folder), "lock": None if self._lock is None else kept(self._lock)}

    @classmethod
    def adopted(cls, state: State) -> "Staging":
        """Takes over the folder described by `handed`."""
        staging = cls()
        staging._folder = Path(state["folder"])
        staging._lock = None if state["lock"] is None else taken(state["lock"])
        return staging

    def remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@_explained()
def sweep() -> None:
    """Removes the folders of this user's appliances that were killed and could not do it themselves."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        lock = None
        with contextlib.suppress(OSError):
            lock = _hold(path)
        if lock is None:
            continue
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
        _log.info("removed %s, which an appliance that was killed left behind", path)


def _make() -> tuple[Path, int | None]:
    """Makes a new folder and holds it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = _hold(path)
        except OSError:
            # A file system without locks: no sweep removes anything there.
            return path, None
        if lock is not None:
            return path, lock
        # Another appliance's sweep came between, and removes it.


def _hold(path: Path) -> int | None:
    """Opens and locks a folder of this user; None if it is missing, belongs to another user, or is locked.

    The kernel releases the lock when the last process that has the descriptor ends, even if it is killed. Raises
    OSError if the folder cannot be opened (a link is refused), or if its file system has no locks.
    """
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    held = False
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its previous owner may have removed it in the meantime.
            held = os.path.samestat(os.fstat(folder), path.lstat())
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not held:
            os.close(folder)
    return folder if held else None


def _readable_by_all(path: Path) -> bool:
    real = path.resolve()
    return bool(real.stat().st_mode & stat.S_IROTH) and all(p.stat().st_mode & stat.S_IXOTH for p in real.parents)
