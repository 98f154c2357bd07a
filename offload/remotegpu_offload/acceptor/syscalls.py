"""System calls that Python has no function for. Linux on x86_64 and aarch64; numbers from the kernel's headers.

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
_PR_SET_SECCOMP: Final = 22
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_SECCOMP_MODE_FILTER: Final = 2
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
# The same on both architectures: they are newer than the common table.
_SYS_MOUNT_SETATTR: Final = 442
_SYS_LANDLOCK_CREATE_RULESET: Final = 444
_SYS_LANDLOCK_ADD_RULE: Final = 445
_SYS_LANDLOCK_RESTRICT_SELF: Final = 446
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
    """Add MOUNT_ATTR_* (which are spelt as MS_RDONLY, MS_NOSUID, MS_NODEV) to the mount and all beneath. Linux 5.12."""
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    _syscall("mount_setattr", _SYS_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, wanted, 32)


def set_parent_death_signal(number: int) -> None:
    """Lasts until the process changes its user id."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, number)


def set_dumpable(value: bool) -> None:
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, int(value))


def become_subreaper() -> None:
    """Orphans beneath us become our children."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def set_no_new_privileges() -> None:
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """All of them, for good."""
    _prctl("PR_CAP_AMBIENT", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(64):
        # EINVAL: past the last one; EPERM: without privileges there is nothing to drop.
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3) < 0:
            break
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def set_seccomp_filter(program: bytes) -> None:
    """`program` as seccomp.assemble makes it. The calling thread only; call it while there is one."""
    buffer = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    whole = Program(len(program) // 8, ctypes.addressof(buffer))
    _prctl("PR_SET_SECCOMP", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(whole))


def landlock_abi() -> int:
    """0: this kernel has none."""
    try:
        return _syscall("landlock", _SYS_LANDLOCK_CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def landlock_create(files: int, network: int, scopes: int) -> int:
    """The descriptor of a ruleset that handles these rights."""
    attributes = (ctypes.c_uint64 * 3)(files, network, scopes)
    # An older kernel knows fewer fields and takes the rest only as zeros.
    return _syscall("landlock_create_ruleset", _SYS_LANDLOCK_CREATE_RULESET, attributes, ctypes.sizeof(attributes), 0)


def landlock_allow(ruleset: int, files: int, beneath: int) -> None:
    class PathBeneath(ctypes.Structure):
        _pack_ = 1
        _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))

    _syscall("landlock_add_rule", _SYS_LANDLOCK_ADD_RULE, ruleset, 1, ctypes.byref(PathBeneath(files, beneath)), 0)


def landlock_restrict(ruleset: int) -> None:
    _syscall("landlock_restrict_self", _SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)
