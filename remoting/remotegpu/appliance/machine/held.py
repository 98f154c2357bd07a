"""Measures a session's use of this machine's memory through /proc, without the help of its processes.

The sum has mapped memory, memory files to which the processes have descriptors (memfds), and the memory file system to
which an offload session may write.
"""

import contextlib
import ctypes
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

# The writable folder of a session with its own mounts, the same as in `remotegpu_offload.acceptor.mounts`.
_SCRATCH: Final = "tmp"
# Memory that may be shared is measured exactly, which costs time, only above this size.
_CLOSE_ENOUGH: Final = 16 << 20
_CAP_SYS_PTRACE: Final = 19
_ANONYMOUS: Final = "RssAnon"
# Huge pages are in no other value of `status`.
_MAPPED: Final = ("RssShmem", "HugetlbPages")
_KIND: Final = re.compile(r"^(RssAnon|RssShmem|HugetlbPages):\s+(\d+) kB$", re.MULTILINE)
_OWN: Final = re.compile(r"^Pss_Anon:\s+(\d+) kB$", re.MULTILINE)
# For each mapping: device and inode of its file, and the process's proportional part of its pages.
_MAPPING: Final = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+).*$(?:\n(?!Pss:).*$)*\nPss:\s+(\d+) kB$",
    re.MULTILINE,
)
# The same for huge pages, which have no proportional part: also the addresses, and whether the mapping is shared.
_HUGE: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) ...([sp]) [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+).*$(?:\n(?!KernelPageSize:).*$)*"
    r"\nKernelPageSize:\s+(\d+) kB$(?:\n(?!Shared_Hugetlb:).*$)*"
    r"\nShared_Hugetlb:\s+(\d+) kB\nPrivate_Hugetlb:\s+(\d+) kB$",
    re.MULTILINE,
)
# Bits of an entry of /proc/PID/pagemap: a page is present, and the page belongs to the file.
_PRESENT: Final = 1 << 63
_OF_FILE: Final = 1 << 61
_ENTRY: Final = 8  # bytes, for each small page
_HUGE_SIZES: Final = Path("/sys/kernel/mm/hugepages")
# memfd_create(2): the position of the page size in the flags.
_MFD_HUGE_SHIFT: Final = 26

File = tuple[int, int]  # device and inode


@dataclass(frozen=True, slots=True)
class Held:
    bytes: int
    hides: bool = False  # one of its processes cannot be inspected, although another one can


@dataclass(slots=True)
class _Found:
    deadline: float
    seen: int = 0  # processes whose descriptors can be listed
    unseen: int = 0
    anonymous: list[int] = field(default_factory=list)  # bytes of each process
    mapped: int = 0  # bytes of memory files, once for each process that maps them
    files: dict[File, int] = field(default_factory=dict)  # bytes of files with a descriptor, mapped or not
    scratch: int = 0


def held_by(pid: int, uid: int | None = None, *, children: bool = False, seconds: float = 1.0) -> Held:
    """Returns the memory that a process holds; 0 bytes if it has ended. Blocks: not for an event loop.

    With `children`, all descendants are included. Memory that several of the processes share counts once. Page-locked
    memory of a real driver is not counted. `uid` is the user of the process, if it is not ours.

    The exact measurement takes at most `seconds`, since a tenant can make it long. After that time, shared memory
    counts for each process. Huge pages without a descriptor always count once for each mapping.
    """
    with _as_user(uid):
        pids = _tree(pid) if children else [pid]
        found = _Found(time.monotonic() + seconds)
        for each in pids:
            _look_at(each, found)
        files = sum(found.files.values()) + found.scratch
        least = max(found.anonymous, default=0) + max(found.mapped, files)
        most = sum(found.anonymous) + found.mapped + files
        close = most - least <= _CLOSE_ENOUGH
        size = least if close else files + sum(_exactly(each, found) for each in pids)
        return Held(size, hides=found.seen > 0 and found.unseen > 0)


def _look_at(pid: int, found: _Found) -> None:
    """Adds the memory of a process to `found`. If its descriptors cannot be listed, only `status` counts."""
    sizes = _sizes(pid)
    found.anonymous.append(sizes.get(_ANONYMOUS, 0))
    found.mapped += sum(sizes.get(kind, 0) for kind in _MAPPED)
    with contextlib.suppress(OSError):
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 (descriptors, not files)
        except PermissionError:
            # A zombie has no memory, and its descriptors cannot be listed either.
            found.unseen += bool(_sizes(pid))
            raise
        found.seen += 1
        for descriptor in descriptors:
            if time.monotonic() > found.deadline:
                break
            with contextlib.suppress(OSError):
                file = os.stat(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH116 (of the file behind it)
                if stat.S_ISREG(file.st_mode) and file.st_dev in (*_in_memory(), *_huge()):
                    found.files[file.st_dev, file.st_ino] = file.st_blocks * 512
    with contextlib.suppress(OSError):
        if not found.scratch and Path(f"/proc/{pid}/ns/mnt").stat().st_ino != Path("/proc/self/ns/mnt").stat().st_ino:
            room = os.statvfs(f"/proc/{pid}/root/{_SCRATCH}")
            found.scratch = (room.f_blocks - room.f_bfree) * room.f_frsize


def _exactly(pid: int, found: _Found) -> int:
    """Returns the memory that a process maps, with its part of shared pages, but without `files` and `scratch`."""
    if time.monotonic() > found.deadline:
        return sum(_sizes(pid).values())
    with contextlib.suppress(OSError):
        own = sum(int(size) << 10 for size in _OWN.findall(_text(f"/proc/{pid}/smaps_rollup")))
        mapped, text = 0, _text(f"/proc/{pid}/smaps")
        for major, minor, inode, size in _MAPPING.findall(text):
            device = os.makedev(int(major, 16), int(minor, 16))
            if device in _in_memory() and (device, int(inode)) not in found.files:
                mapped += int(size) << 10
        return own + mapped + (_huge_pages(pid, text, found) if _sizes(pid).get("HugetlbPages") else 0)
    return sum(_sizes(pid).values())


def _huge_pages(pid: int, text: str, found: _Found) -> int:
    """Returns the bytes of huge pages that a process maps and that are not counted in `files`."""
    held = 0
    for start, end, kind, major, minor, inode, page, shared, private in _HUGE.findall(text):
        size = int(shared) + int(private) << 10
        # A write to a private mapping gives the process a page of its own, in addition to the page of the file.
        copies = _copies(pid, int(start, 16), int(end, 16), int(page) << 10, found) if kind == "p" and size else 0
        counted = (os.makedev(int(major, 16), int(minor, 16)), int(inode)) in found.files
        held += min(copies, size) if counted else size
    return held


def _copies(pid: int, start: int, end: int, page: int, found: _Found) -> int:
    """Returns the bytes between two addresses that belong to no file; all bytes if `pagemap` is not read in time."""
    small = os.sysconf("SC_PAGE_SIZE")
    copies = 0
    try:
        with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
            for at in range(start, end, page):
                if time.monotonic() > found.deadline:
                    return copies + end - at
                entry = int.from_bytes(os.pread(pagemap.fileno(), _ENTRY, at // small * _ENTRY), "little")
                copies += page if entry & _PRESENT and not entry & _OF_FILE else 0
    except OSError:
        return end - start
    return copies


def _sizes(pid: int) -> dict[str, int]:
    """Returns a process's bytes by kind of memory; empty if it has ended."""
    with contextlib.suppress(OSError):
        return {kind: int(size) << 10 for kind, size in _KIND.findall(_text(f"/proc/{pid}/status"))}
    return {}


def _tree(pid: int) -> list[int]:
    """Returns a process and all its descendants."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{each}/task"):  # noqa: PTH208 (threads, not files)
                with contextlib.suppress(OSError):
                    found += map(int, _text(f"/proc/{each}/task/{task}/children").split())
    return found


@cache
def _in_memory() -> tuple[int, ...]:
    """Returns the device number of the kernel's memory files: memfds, and shared memory without a file."""
    return (_device_of(os.MFD_CLOEXEC),)


@cache
def _huge() -> tuple[int, ...]:
    """Returns the device numbers of files in huge pages, one for each page size."""
    sizes = [int(each.name.removeprefix("hugepages-").removesuffix("kB")) << 10 for each in _HUGE_SIZES.glob("*")]
    devices = []
    for size in sizes:
        # A kernel may list a size without having a file system for it.
        with contextlib.suppress(OSError):
            flags = os.MFD_CLOEXEC | os.MFD_HUGETLB | (size.bit_length() - 1) << _MFD_HUGE_SHIFT
            devices.append(_device_of(flags))
    return tuple(devices)


def _device_of(flags: int) -> int:
    file = os.memfd_create("remotegpu-probe", flags)
    try:
        return os.fstat(file).st_dev
    finally:
        os.close(file)


@contextlib.contextmanager
def _as_user(uid: int | None) -> Iterator[None]:
    """Runs as the user for file access in this thread, if that is needed to inspect the user's processes.

    Root in a container often lacks CAP_SYS_PTRACE and so may not inspect other users' processes.
    """
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
