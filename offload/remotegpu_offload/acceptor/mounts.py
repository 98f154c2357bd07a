"""The file system of a session in a mount namespace of its own: everything read-only, private places empty."""

import itertools
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from remotegpu_offload.acceptor import syscalls
from remotegpu_offload.acceptor.readable import needed, outermost

# Where a session may write; its home is the first. One tmpfs for all of them, which ends with the namespace.
SCRATCH: Final = Path("/tmp")  # noqa: S108 (its own, nobody else sees it)
_ALSO_SCRATCH: Final = ("/var/tmp", "/dev/shm")  # noqa: S108
# Other people's files and sockets, secrets of the pod; empty for a session.
_PRIVATE: Final = ("/root", "/home", "/run", "/var/run", "/var/lib", "/var/log", "/var/spool", "/srv", "/mnt", "/media")
DEVICES: Final = ("null", "zero", "full", "random", "urandom")
# How the names of their nodes begin.
ACCELERATORS: Final = ("nvidia", "kfd", "dri", "accel")
_LINKS: Final = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_SCRATCH_MODE: Final = 0o1777
_READ_ONLY_AGAIN: Final = (
    syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
)


def confine(named: Sequence[Path], hidden: Sequence[Path], scratch_bytes: int, nodes: Sequence[str]) -> None:
    """Rearrange this process's mount namespace, which must be its own. What is `named` stays where it is, and device
    nodes of accelerators whose names begin so. Raises OSError where the kernel refuses."""
    # Folders made on the way must be passable for the session's own user.
    os.umask(0o022)
    keep = [path for path in outermost([*needed(), *map(Path.resolve, named)]) if os.access(path, os.R_OK)]
    syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.set_mount_attributes("/", syscalls.MS_RDONLY | syscalls.MS_NOSUID)
    private = {*map(Path, _PRIVATE), *closed(keep)}
    descriptors = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in keep}
    # First, because the new /dev is put together in it.
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
    """The outermost folders on the way to these that a stranger may not pass, as /root is."""
    found: set[Path] = set()
    for path in paths:
        shut = (folder for folder in reversed(path.parents) if not folder.stat().st_mode & stat.S_IXOTH)
        found.update(itertools.islice(shut, 1))
    return found


def _tmpfs(folder: Path, size: int, mode: int) -> None:
    options = f"size={size},mode={mode:o}"
    syscalls.mount("tmpfs", str(folder), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)


def hide(folder: Path, kept: dict[Path, int]) -> None:
    """An empty folder in its place, with what must stay mounted where it was."""
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
    """A /dev with harmless devices and these accelerators, in place of the machine's."""
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
    """Nothing in place of a file or folder, if it is still to be seen."""
    if path.is_dir():
        _tmpfs(path, 1 << 12, 0o555)
    elif path.exists():
        syscalls.mount("/dev/null", str(path), flags=syscalls.MS_BIND)
