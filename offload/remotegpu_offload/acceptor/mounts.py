"""The file system of a session in its own mount namespace: all paths are read-only, and private folders are empty."""

import itertools
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from remotegpu_offload.acceptor import syscalls
from remotegpu_offload.acceptor.readable import needed, outermost

# The folders where a session may write; its home is the first. They share one tmpfs, which ends with the namespace.
SCRATCH: Final = Path("/tmp")  # noqa: S108 (a mount of the session's own; other processes do not see it)
_ALSO_SCRATCH: Final = ("/var/tmp", "/dev/shm")  # noqa: S108
# Folders with files and sockets of other users, and secrets of the pod. A session finds them empty.
_PRIVATE: Final = ("/root", "/home", "/run", "/var/run", "/var/lib", "/var/log", "/var/spool", "/srv", "/mnt", "/media")
DEVICES: Final = ("null", "zero", "full", "random", "urandom")
# Prefixes of the names of accelerators' device nodes.
ACCELERATORS: Final = ("nvidia", "kfd", "dri", "accel")
_LINKS: Final = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_SCRATCH_MODE: Final = 0o1777
_READ_ONLY_AGAIN: Final = (
    syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
)


def confine(named: Sequence[Path], hidden: Sequence[Path], scratch_bytes: int, nodes: Sequence[str]) -> None:
    """Rearranges the mount namespace of this process, which must be its own.

    The paths of `named` stay visible, and so do device nodes whose names begin with one of `nodes`. Raises OSError
    where the kernel refuses.
    """
    # The session's own user must be able to traverse folders that are created here.
    os.umask(0o022)
    keep = [path for path in outermost([*needed(), *map(Path.resolve, named)]) if os.access(path, os.R_OK)]
    syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.set_mount_attributes("/", syscalls.MS_RDONLY | syscalls.MS_NOSUID)
    private = {*map(Path, _PRIVATE), *closed(keep)}
    descriptors = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in keep}
    # The first mount, because the new /dev is built inside it.
    _tmpfs(SCRATCH, scratch_bytes, _SCRATCH_MODE)
    _devices(tuple(nodes))
    for folder in sorted(private):
        if folder.is_dir() and not folder.is_symlink():
            hide(folder, descriptors)
    _keep(SCRATCH, descriptors)
    for name in _ALSO_SCRATCH:
        place = SCRATCH / f".{Path(name).name}"
        if Path(name).is_dir():
            place.mkdir(mode=_SCRATCH_MODE)
            place.chmod(_SCRATCH_MODE)
            syscalls.mount(str(place), name, flags=syscalls.MS_BIND)
    for path in hidden:
        _cover(path)
    for descriptor in descriptors.values():
        os.close(descriptor)


def closed(paths: Iterable[Path]) -> set[Path]:
    """Returns, for each path, the outermost parent folder that other users may not traverse (such as /root)."""
    found: set[Path] = set()
    for path in paths:
        shut = (folder for folder in reversed(path.parents) if not folder.stat().st_mode & stat.S_IXOTH)
        found.update(itertools.islice(shut, 1))
    return found


def _tmpfs(folder: Path, size: int, mode: int) -> None:
    options = f"size={size},mode={mode:o}"
    syscalls.mount("tmpfs", str(folder), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)


def hide(folder: Path, kept: dict[Path, int]) -> None:
    """Covers a folder with an empty one. Mounts in it again the `kept` paths that lie below it."""
    _tmpfs(folder, 1 << 20, 0o755)
    _keep(folder, kept)
    syscalls.mount("", str(folder), flags=_READ_ONLY_AGAIN)


def _keep(folder: Path, kept: dict[Path, int]) -> None:
    for path, descriptor in kept.items():
        if path.is_relative_to(folder):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            flags = syscalls.MS_BIND | syscalls.MS_REC
            syscalls.mount(f"/proc/self/fd/{descriptor}", str(path), flags=flags)


def _devices(nodes: tuple[str, ...]) -> None:
    """Replaces /dev by a folder with harmless devices and the accelerators that `nodes` names by prefix."""
    place = SCRATCH / ".devices"
    place.mkdir()
    _tmpfs(place, 1 << 20, 0o755)
    for entry in sorted(Path("/dev").iterdir()):
        if entry.name in DEVICES or entry.name.startswith(nodes):
            target = place / entry.name
            target.mkdir() if entry.is_dir() else target.touch()
            syscalls.mount(str(entry), str(target), flags=syscalls.MS_BIND | syscalls.MS_REC)
    for name, leads_to in _LINKS.items():
        (place / name).symlink_to(leads_to)
    (place / "shm").mkdir()
    syscalls.mount(str(place), "/dev", flags=syscalls.MS_MOVE)
    place.rmdir()


def _cover(path: Path) -> None:
    """Covers a file or folder with an empty one, if it is still visible."""
    if path.is_dir():
        _tmpfs(path, 1 << 12, 0o555)
    elif path.exists():
        syscalls.mount("/dev/null", str(path), flags=syscalls.MS_BIND)
