"""The appliance's temporary folder: for files that other users must read, and for scratch folders of sessions."""

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
    """Raised if the temporary folder cannot be used. The message has the cause and the remedy."""


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
    """A folder in the machine's temporary folder, created at the first use.

    It also has copies of programs and libraries that another uid cannot read at their original path, as under /root.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock: int | None = None

    @_explained()
    def readable(self, path: Path) -> Path:
        """Returns `path` if every user can read it or the appliance is not root, else the path of a copy."""
        if os.geteuid() != 0 or _readable_by_all(path):
            return path
        copy = self.folder(path.parent.name) / path.name
        # Written under another name: the old copy may be running, as after a handover.
        new = copy.with_name(f"{copy.name}.new")
        shutil.copyfile(path, new)
        new.chmod(0o755)
        return new.rename(copy)

    @_explained()
    def folder(self, name: str) -> Path:
        """Returns a subfolder that every user can read. It is removed when the appliance ends."""
        if self._folder is None:
            self._folder, self._lock = _make()
            self._folder.chmod(0o755)
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        return folder

    def private(self, name: str) -> Path:
        """Returns a subfolder that no other user can read."""
        folder = self.folder(name)
        folder.chmod(0o700)
        return folder

    def handed(self) -> State:
        return {"folder": str(self._folder), "lock": None if self._lock is None else kept(self._lock)}

    @classmethod
    def adopted(cls, state: State) -> "Staging":
        """Takes over the folder from a state that `handed` returned."""
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
    """Removes folders that killed appliances of this user left behind."""
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
    """Creates a folder and locks it. The lock is None if the file system has no locks."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = _hold(path)
        except OSError:
            # On a file system without locks, `sweep` removes nothing.
            return path, None
        if lock is not None:
            return path, lock
        # Another appliance's `sweep` locked the folder first, and removes it.


def _hold(path: Path) -> int | None:
    """Opens and locks a folder of this user. Returns None if it is missing, locked, or another user's.

    The kernel releases the lock when the last process with the descriptor ends, even if it is killed. Raises OSError
    if the folder cannot be opened or is a link, or if its file system has no locks.
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
