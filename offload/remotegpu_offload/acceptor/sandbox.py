"""Shuts a forked process in, before it has seen a byte of its client.

Two levels. **namespaces**: its own process ids, mounts, network, IPC; it may start processes and open files, all of
which end with it. **alone**, where kernel or container gives no namespaces: one process, no connections, Landlock.
"""

import contextlib
import errno
import fcntl
import os
import resource
import socket
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from remotegpu_offload.acceptor import mounts, restrictions, syscalls
from remotegpu_offload.acceptor.readable import readable

NAMESPACES: Final = "namespaces"
ALONE: Final = "alone"
_ALL: Final = (
    syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
)
_OPEN_FILES: Final = 65536
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


@dataclass(frozen=True, slots=True)
class Place:
    """The appliance's settings for one session."""

    uid: int | None  # None: it keeps the appliance's
    readable: tuple[Path, ...]  # what the administrator lets sessions read, besides the interpreter's needs
    hidden: tuple[Path, ...]  # secrets: files, or folders with all that is in them
    folder: Path  # to write into, where it has no file system of its own
    cgroups: tuple[Path, ...]  # the cgroup.procs files of its groups
    processes: int  # and threads, at a time
    scratch_bytes: int  # of its file system in memory

    @classmethod
    def from_packet(cls, packet: Mapping[str, Any]) -> "Place":
        return cls(
            uid=packet["uid"],
            readable=tuple(map(Path, packet["readable"])),
            hidden=tuple(map(Path, packet["hidden"])),
            folder=Path(packet["folder"]),
            cgroups=tuple(map(Path, packet["cgroups"])),
            processes=int(packet["processes"]),
            scratch_bytes=int(packet["scratch_bytes"]),
        )


@dataclass(frozen=True, slots=True)
class Isolation:
    """The isolation that the kernel granted: its level, the session's folder, and what is missing."""

    level: str
    folder: Path
    lacks: tuple[str, ...]


def divide(place: Place) -> str:
    """First step, while nothing is given up: cgroups and namespaces. Returns the level that was reached.

    In NAMESPACES the next fork is the first process of the new process ids, and `shut` is for it.
    """
    for group in place.cgroups:
        group.write_text("0", encoding="ascii")
    uid, gid = os.geteuid(), os.getegid()
    try:
        if uid == 0:
            syscalls.unshare(_ALL)
        else:
            # Without root, a user namespace of its own gives the right to the others.
            syscalls.unshare(_ALL | syscalls.CLONE_NEWUSER)
            Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.ENOSPC, errno.EINVAL, errno.EACCES):
            raise
        return ALONE
    return NAMESPACES


def shut(place: Place, level: str, *, nodes: Sequence[str]) -> Isolation:
    """Last step, in the process that stays: files, limits, identity, rights. Raises OSError if the system refuses.

    `nodes`: prefixes of the names of the accelerators' device nodes that it may open. They may belong to a group, which
    the session then keeps.
    """
    lacks: list[str] = []
    folder = place.folder
    if level == NAMESPACES:
        mounts.confine(place.readable, place.hidden, place.scratch_bytes, nodes)
        folder = mounts.SCRATCH
        _own_proc(lacks)
        _loopback_up()
    else:
        lacks.append("namespaces (no processes of its own, no connections)")
    if not place.cgroups:
        lacks.append("cgroups (memory is not limited, processes only by the user's number)")
    # Where it has neither, other processes of this user would be counted; there it can start threads only.
    _limit(place.processes if level == NAMESPACES or place.uid is not None else None)
    if place.uid is not None:
        if level == ALONE:
            os.chown(folder, place.uid, place.uid)
        os.setgroups(_device_groups(nodes))
        os.setresgid(place.uid, place.uid, place.uid)
        os.setresuid(place.uid, place.uid, place.uid)
    elif level == ALONE or os.geteuid() == 0:
        lacks.append("a user id of its own")
    os.umask(0o077)
    syscalls.drop_capabilities()
    syscalls.set_no_new_privileges()
    syscalls.set_dumpable(False)
    writable = [Path("/dev"), Path("/tmp"), Path("/var/tmp")] if level == NAMESPACES else [folder, *_own_devices(nodes)]  # noqa: S108
    # A namespace of its own has covered the secrets already. Elsewhere, other sessions' folders lie next to this one.
    hidden = () if level == NAMESPACES else (*place.hidden, folder.parent, *_other_devices(nodes))
    allowed = readable(place.readable, own_processes=level == NAMESPACES, accelerators=bool(nodes))
    if restrictions.give_up_files(allowed, hidden, writable, network=level == NAMESPACES):
        # Landlock keeps other sessions out; the appliance looks in, to count its memory.
        syscalls.set_dumpable(resource.getrlimit(resource.RLIMIT_CORE)[0] == 1)
    else:
        lacks.append("Landlock (needs Linux 5.13)")
        if level == ALONE and place.uid is None:
            raise OSError(
                errno.ENOSYS,
                "neither namespaces, nor a user id of its own, nor Landlock: nothing would keep sessions apart; start "
                "the appliance as root, or on a kernel from 5.13 on",
            )
    restrictions.give_up_calls(alone=level == ALONE)
    return Isolation(level, folder, tuple(lacks))


def close_all_but(kept: Sequence[int]) -> None:
    """Closes every other descriptor except standard input, output and error."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (descriptors, not files)
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _own_proc(lacks: list[str]) -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    try:
        syscalls.mount("proc", "/proc", "proc", flags)
    except OSError:
        # In a container, parts of /proc are covered; a process that is not root may then not mount one that shows them.
        lacks.append("a /proc of its own (it sees that other processes exist)")


def _loopback_up() -> None:
    """Brings up the loopback interface of the session's own network: programs talk to themselves."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = bytearray(struct.pack("16sH22x", b"lo", 0))
        fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("H", request, 16)
        struct.pack_into("H", request, 16, flags | _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _limit(processes: int | None) -> None:
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _OPEN_FILES if most_files == resource.RLIM_INFINITY else min(_OPEN_FILES, most_files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    # No core: it would hold a tenant's memory. At 0 the kernel hands one to the program that `core_pattern` may name.
    core = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (core, core))
    # If memory runs out, the kernel ends a session, not the appliance.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if processes is None:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    count = processes if most == resource.RLIM_INFINITY else min(processes, most)
    resource.setrlimit(resource.RLIMIT_NPROC, (count, count))


def _device_groups(nodes: Sequence[str]) -> list[int]:
    """Returns the groups of accelerators that not every user may open."""
    shared = stat.S_IRGRP | stat.S_IWGRP
    return sorted(
        {
            found.st_gid
            for node in _accelerators(nodes)
            if not (found := node.stat()).st_mode & stat.S_IWOTH and found.st_mode & shared
        }
    )


def _own_devices(nodes: Sequence[str]) -> list[Path]:
    return [Path("/dev") / name for name in mounts.DEVICES] + _accelerators(nodes)


def _other_devices(nodes: Sequence[str]) -> list[Path]:
    """Lists accelerators that the session may not even read."""
    entries = [path for path in Path("/dev").iterdir() if path.name.startswith(mounts.ACCELERATORS)]
    return [path for path in entries if not path.name.startswith(tuple(nodes))]


def _accelerators(nodes: Sequence[str]) -> list[Path]:
    """Lists device nodes with such names, and what lies in folders with such names."""
    entries = [path for path in Path("/dev").iterdir() if path.name.startswith(tuple(nodes))]
    return [node for path in entries for node in ([path] if not path.is_dir() else path.rglob("*"))]
