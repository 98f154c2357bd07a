"""Confines a forked process before it reads a byte of its client.

There are two levels. **namespaces**: the session has its own process ids, mounts, network and IPC. It may start
processes and open files, and all of them end with the session. **alone** is the level where the kernel or the container
offers no namespaces: one process, no connections, Landlock.
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
    """The appliance's settings for one session's sandbox."""

    uid: int | None  # None: the session keeps the appliance's user id
    readable: tuple[Path, ...]  # paths that the administrator lets sessions read, besides the interpreter's needs
    hidden: tuple[Path, ...]  # secrets: files, or folders with all their content
    folder: Path  # writable folder, used where the session has no file system of its own
    cgroups: tuple[Path, ...]  # the cgroup.procs files of the session's groups
    processes: int  # most processes and threads at a time
    scratch_bytes: int  # size of the session's file system in memory

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
    """The isolation that the kernel granted: its level, the session's folder, and missing protections."""

    level: str
    folder: Path
    lacks: tuple[str, ...]


def divide(place: Place) -> str:
    """Enters cgroups and namespaces: the first step, while the process still has its rights. Returns the level reached.

    In NAMESPACES the next fork becomes process 1 of the new PID namespace, and that process must call `shut`.
    """
    for group in place.cgroups:
        group.write_text("0", encoding="ascii")
    uid, gid = os.geteuid(), os.getegid()
    try:
        if uid == 0:
            syscalls.unshare(_ALL)
        else:
            # Without root, a user namespace of its own gives the right to create the other namespaces.
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
    """Restricts files, limits, identity and rights: the last step, in the final process.

    `nodes`: prefixes of the names of the device nodes that the session may open. If a device node belongs to a group,
    the session keeps that group. Raises OSError if the system refuses.
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
    # Without namespaces and without a user id of its own, the limit would count other processes of this user. In that
    # case seccomp forbids new processes, and threads are not limited.
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
    # At the level NAMESPACES, the mounts cover the secrets already. At ALONE, other sessions' folders lie next to this
    # one.
    hidden = () if level == NAMESPACES else (*place.hidden, folder.parent, *_other_devices(nodes))
    allowed = readable(place.readable, own_processes=level == NAMESPACES, accelerators=bool(nodes))
    if restrictions.give_up_files(allowed, hidden, writable, network=level == NAMESPACES):
        # Landlock keeps other sessions out. The appliance must read /proc of this process to count its memory.
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
        # In a container, parts of /proc are covered. Then a process without root may not mount a /proc that shows them.
        lacks.append("a /proc of its own (it sees that other processes exist)")


def _loopback_up() -> None:
    """Brings up the loopback interface of the session's own network, so that programs can connect to themselves."""
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
    # No core dump: it would contain a tenant's memory. At limit 0 the kernel still pipes a dump to the program that
    # `core_pattern` may name; at limit 1 it does not.
    core = 0 if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (core, core))
    # If memory runs out, the kernel kills a session and not the appliance.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if processes is None:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    count = processes if most == resource.RLIM_INFINITY else min(processes, most)
    resource.setrlimit(resource.RLIMIT_NPROC, (count, count))


def _device_groups(nodes: Sequence[str]) -> list[int]:
    """Returns the groups of device nodes that not every user may open."""
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
    """Returns the device nodes of accelerators that the session may not even read."""
    entries = [path for path in Path("/dev").iterdir() if path.name.startswith(mounts.ACCELERATORS)]
    return [path for path in entries if not path.name.startswith(tuple(nodes))]


def _accelerators(nodes: Sequence[str]) -> list[Path]:
    """Returns the device nodes whose names have such a prefix, and all nodes in folders with such names."""
    entries = [path for path in Path("/dev").iterdir() if path.name.startswith(tuple(nodes))]
    return [node for path in entries for node in ([path] if not path.is_dir() else path.rglob("*"))]
