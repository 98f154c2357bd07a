"""Which system calls a session may not make, and the BPF program that says so to the kernel. Pure."""

import errno
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# By name: the number on x86_64 and on aarch64; None: that architecture has no such call.
NUMBERS: Final[dict[str, tuple[int | None, int | None]]] = {
    "accept": (43, 202), "accept4": (288, 242), "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171),
    "bind": (49, 200), "bpf": (321, 280), "chroot": (161, 51), "clock_adjtime": (305, 266),
    "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435), "connect": (42, 203),
    "delete_module": (176, 106), "execve": (59, 221), "execveat": (322, 281), "fanotify_init": (300, 262),
    "fcntl": (72, 25), "finit_module": (313, 273), "fork": (57, None), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fsopen": (430, 430), "fspick": (433, 433), "init_module": (175, 105), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioctl": (16, 29), "ioperm": (173, None),
    "iopl": (172, None), "ioprio_set": (251, 30), "kcmp": (312, 272), "kexec_file_load": (320, 294),
    "kexec_load": (246, 104), "keyctl": (250, 219), "kill": (62, 129), "listen": (50, 201),
    "migrate_pages": (256, 238), "modify_ldt": (154, None), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "move_pages": (279, 239), "mq_open": (240, 180), "msgget": (68, 186),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "prlimit64": (302, 261), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142),
    "request_key": (249, 218), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "semget": (64, 190), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "setpriority": (141, 140), "settimeofday": (164, 170), "shmat": (30, 196),
    "shmget": (29, 194), "socket": (41, 198), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116),
    "tgkill": (234, 131), "tkill": (200, 130), "umount2": (166, 39), "unshare": (272, 97),
    "userfaultfd": (323, 282), "vfork": (58, None), "vhangup": (153, 58),
}  # fmt: skip

# The system's configuration, the kernel's rarely walked paths, a look into other processes: nobody's business here.
_ALWAYS: Final = (
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "pidfd_getfd", "kcmp",
    "move_pages", "migrate_pages",
    "mount", "umount2", "pivot_root", "chroot", "setns", "unshare", "move_mount", "open_tree", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "open_by_handle_at", "name_to_handle_at", "fanotify_init",
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
    "keyctl", "add_key", "request_key",
    "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff",
    "sethostname", "setdomainname", "acct", "quotactl", "quotactl_fd", "settimeofday", "clock_settime",
    "clock_adjtime", "adjtimex", "syslog", "iopl", "ioperm", "modify_ldt", "vhangup", "personality",
)  # fmt: skip
# Where no namespace keeps sessions apart: other processes and programs, connections, and what all processes of a user
# share. The same list as the worker's (worker/src/sandbox.rs), but for `sched_setscheduler`, of which below.
_ALONE: Final = (
    "execve", "execveat", "fork", "vfork", "tkill", "pidfd_open", "pidfd_send_signal", "rt_sigqueueinfo",
    "socket", "connect", "bind", "listen", "accept", "accept4",
    "sched_setaffinity", "sched_setattr", "sched_setparam", "setpriority", "ioprio_set",
    "shmget", "shmat", "msgget", "semget", "mq_open",
)  # fmt: skip

_CLONE_THREAD: Final = 0x10000
# Every CLONE_NEW*, the user namespace among them, in which a process has all capabilities again.
_CLONE_NAMESPACES: Final = 0x7E020080
_F_SETOWN, _F_SETOWN_EX, _FIOSETOWN, _SIOCSPGRP = 8, 15, 0x8901, 0x8902
_SCHED_OTHER: Final = 0
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10

_ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32_BIT: Final = 0x40000000
_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_GREATER_EQUAL, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16

_Instruction = tuple[int, int, int, int]  # code, to skip if true, to skip if false, operand


@dataclass(frozen=True, slots=True)
class Rule:
    """A call that is answered with an error: always, or by the lower 32 bits of one argument."""

    call: str
    answer: int = errno.EPERM
    argument: int = -1
    equal: tuple[int, ...] = ()  # denied if it is one of these
    other_than: tuple[int, ...] = ()  # denied if it is none of these
    all_clear: int = 0  # denied if it has none of these bits
    any_set: int = 0  # denied if it has one of these bits


def rules(own_pid: int, *, alone: bool) -> list[Rule]:
    """`alone`: no namespace keeps sessions apart, so a session is one process without connections."""
    denied = [Rule(name) for name in _ALWAYS]
    # "Does not exist" makes the C library use clone, whose flags can be looked at.
    denied.append(Rule("clone3", errno.ENOSYS))
    denied.append(Rule("ioctl", argument=1, equal=(_TIOCSTI, _TIOCLINUX)))
    if not alone:
        denied.append(Rule("clone", argument=0, any_set=_CLONE_NAMESPACES))
        denied.append(Rule("socket", errno.EAFNOSUPPORT, argument=0, other_than=(_AF_UNIX, _AF_INET, _AF_INET6)))
        return denied
    denied += [Rule(name) for name in _ALONE]
    return [
        *denied,
        Rule("clone", argument=0, all_clear=_CLONE_THREAD),
        *(Rule(name, argument=0, other_than=(own_pid,)) for name in ("kill", "tgkill", "rt_tgsigqueueinfo")),
        Rule("prlimit64", argument=0, other_than=(0, own_pid)),
        # Each thread of ZeroMQ gives itself the ordinary policy, and ends the process if it may not.
        Rule("sched_setscheduler", argument=1, other_than=(_SCHED_OTHER,)),
        # A descriptor's owner gets any signal that its owner chose, SIGKILL too.
        Rule("fcntl", argument=1, equal=(_F_SETOWN, _F_SETOWN_EX)),
        Rule("ioctl", argument=1, equal=(_FIOSETOWN, _SIOCSPGRP)),
    ]


def assemble(denied: Sequence[Rule], machine: str) -> bytes:
    """The program for `os.uname().machine`. Raises KeyError on other machines than x86_64 and aarch64."""
    column, architecture = _ARCHITECTURES[machine]
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        program += [(_JUMP_GREATER_EQUAL, 0, 1, _X32_BIT), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for rule in denied:
        number = NUMBERS[rule.call][column]
        if number is not None:
            block = _block(rule)
            program += [(_JUMP_EQUAL, 0, len(block), number), *block]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _block(rule: Rule) -> list[_Instruction]:
    """What follows the comparison of the number. It leaves the number in the accumulator for the next rule."""
    refuse = (_RETURN, 0, 0, _ERRNO | rule.answer)
    if rule.argument < 0:
        return [refuse]
    # Of each pair below, the first jump that decides leaves the block: to `refuse`, which is last but one, or past it.
    load = (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * rule.argument)
    restore = (_LOAD, 0, 0, _NUMBER_AT)
    if rule.any_set:
        return [load, (_JUMP_SET, 0, 1, rule.any_set), refuse, restore]
    if rule.all_clear:
        return [load, (_JUMP_SET, 1, 0, rule.all_clear), refuse, restore]
    if rule.other_than:
        count = len(rule.other_than)
        jumps = [(_JUMP_EQUAL, count - index, 0, value) for index, value in enumerate(rule.other_than)]
        return [load, *jumps, refuse, restore]
    count = len(rule.equal)
    jumps = [(_JUMP_EQUAL, count - 1 - index, int(index == count - 1), one) for index, one in enumerate(rule.equal)]
    return [load, *jumps, refuse, restore]
