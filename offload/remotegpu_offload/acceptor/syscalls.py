"""System calls that Python's library does not offer. The numbers are those of the kernel's headers.

Every function raises OSError with the kernel's errno.
"""

import ctypes
import os
from typing import Any, Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REMOUNT: Final = 0x20
MS_BIND: Final = 0x1000
MS_MOVE: Final = 0x2000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_SYS_MOUNT_SETATTR: Final = 442
_CAPABILITY_VERSION_3: Final = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(what: str, number: int, *arguments: Any) -> int:
    widened = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *widened), what)


def _prctl(what: str, option: int, *arguments: Any) -> None:
    padded = [*arguments, 0, 0, 0, 0][:4]
    widened = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in padded]
    _checked(_libc.prctl(option, *widened), what)


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    arguments = [text.encode() or None for text in (source, target, kind)]
    _checked(_libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None), f"mount {target}")


def set_mount_attributes(target: str, attributes: int) -> None:
    """Adds MOUNT_ATTR_* flags to the mount and all mounts beneath it. Needs Linux 5.12.

    The flags have the values of MS_RDONLY, MS_NOSUID and MS_NODEV.
    """
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    _syscall("mount_setattr", _SYS_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, wanted, 32)


def set_parent_death_signal(number: int) -> None:
    """Lets the kernel send signal `number` to this process when its parent ends. A change of the user id cancels it."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, number)


def set_dumpable(value: bool) -> None:
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, int(value))


def become_subreaper() -> None:
    """Makes orphaned descendants of this process its children."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def set_no_new_privileges() -> None:
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Drops all capabilities irrevocably."""
    _prctl("PR_CAP_AMBIENT", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(64):
        # EINVAL: the number is past the last capability. EPERM: a process without privileges has nothing to drop.
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3) < 0:
            break
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
