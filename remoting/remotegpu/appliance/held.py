"""What a session holds of this machine's memory, seen from outside: its processes are asked nothing.

Beside what they have mapped, that is files in memory of which they have descriptors (memfds), and the file system in
memory that a session of offload may write to.
"""

import contextlib
import ctypes
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

# As `remotegpu_offload.acceptor.mounts` has it: where a session with mounts of its own may write.
_SCRATCH: Final = "tmp"
# What may be shared, and is not looked at more closely, which costs time.
_CLOSE_ENOUGH: Final = 16 << 20
_CAP_SYS_PTRACE: Final = 19
_KIND: Final = re.compile(r"^Rss(Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)
_OWN: Final = re.compile(r"^Pss_Anon:\s+(\d+) kB$", re.MULTILINE)
# Of each mapping: device and inode of its file, and what of it is this process's part.
_MAPPING: Final = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+).*$(?:\n(?!Pss:).*$)*\nPss:\s+(\d+) kB$",
    re.MULTILINE,
)

File = tuple[int, int]  # device and inode


@dataclass(slots=True)
class _Found:
    anonymous: list[int] = field(default_factory=list)  # of each process
    mapped: int = 0  # files in memory, once for each process that maps them
    files: dict[File, int] = field(default_factory=dict)  # those with a descriptor, mapped or not
    scratch: int = 0
    scratch_device: int = -1


def held_by(pid: int, uid: int | None = None, *, children: bool = False) -> int:
    """Bytes that a process holds, 0 once it has ended. `children`: and all that it has started. `uid`: its user, where
    that is not ours. What several of them share counts once. Page-locked memory of a real driver is not seen."""
    with _as_user(uid):
        pids = _tree(pid) if children else [pid]
        found = _Found()
        for each in pids:
            _look_at(each, found)
        files = sum(found.files.values()) + found.scratch
        least = max(found.anonymous, default=0) + max(found.mapped, files)
        most = sum(found.anonymous) + found.mapped + files
        return least if most - least <= _CLOSE_ENOUGH else files + sum(_exactly(each, found) for each in pids)


def _look_at(pid: int, found: _Found) -> None:
    """A process that ends meanwhile holds nothing; of one that may not be looked into, `status` is what there is."""
    with contextlib.suppress(OSError):
        sizes = {kind: int(size) << 10 for kind, size in _KIND.findall(_text(f"/proc/{pid}/status"))}
        found.anonymous.append(sizes.get("Anon", 0))
        found.mapped += sizes.get("Shmem", 0)
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 (descriptors, not files)
            with contextlib.suppress(OSError):
                file = os.stat(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH116 (of the file behind it)
                if stat.S_ISREG(file.st_mode) and file.st_dev == _in_memory():
                    found.files[file.st_dev, file.st_ino] = file.st_blocks * 512
    with contextlib.suppress(OSError):
        if not found.scratch and Path(f"/proc/{pid}/ns/mnt").stat().st_ino != Path("/proc/self/ns/mnt").stat().st_ino:
            place = Path(f"/proc/{pid}/root/{_SCRATCH}")
            room, found.scratch_device = os.statvfs(place), place.stat().st_dev
            found.scratch = (room.f_blocks - room.f_bfree) * room.f_frsize


def _exactly(pid: int, found: _Found) -> int:
    """What a process has mapped, without what stands in `files` and `scratch`: of shared pages its part."""
    with contextlib.suppress(OSError):
        own = sum(int(size) << 10 for size in _OWN.findall(_text(f"/proc/{pid}/smaps_rollup")))
        mapped = 0
        for major, minor, inode, size in _MAPPING.findall(_text(f"/proc/{pid}/smaps")):
            device = os.makedev(int(major, 16), int(minor, 16))
            if device == _in_memory() and (device, int(inode)) not in found.files:
                mapped += int(size) << 10
        return own + mapped
    with contextlib.suppress(OSError):
        return sum(int(size) << 10 for _, size in _KIND.findall(_text(f"/proc/{pid}/status")))
    return 0


def _tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{each}/task"):  # noqa: PTH208 (threads, not files)
                with contextlib.suppress(OSError):
                    found += map(int, _text(f"/proc/{each}/task/{task}/children").split())
    return found


@cache
def _in_memory() -> int:
    """The device of the kernel's own files in memory: memfds, and memory that processes share without a file."""
    file = os.memfd_create("remotegpu-probe", os.MFD_CLOEXEC)
    try:
        return os.fstat(file).st_dev
    finally:
        os.close(file)


@contextlib.contextmanager
def _as_user(uid: int | None) -> Iterator[None]:
    """Have this thread look at files as that user, if it has no right of its own to look into others' processes: root
    in a container often has none."""
    if uid is None or os.geteuid() != 0 or _sees_all():
        yield
        return
    libc = ctypes.CDLL(None)
    libc.setfsgid(uid)
    libc.setfsuid(uid)
    try:
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(os.getegid())


@cache
def _sees_all() -> bool:
    (rights,) = re.findall(r"^CapEff:\s+(\w+)$", _text("/proc/self/status"), re.MULTILINE)
    return bool(int(rights, 16) >> _CAP_SYS_PTRACE & 1)


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")
