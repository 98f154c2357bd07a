"""Starts a program as on a kernel without Landlock (before 5.13): `without_landlock.py PROGRAM [ARGUMENT]`.

A seccomp filter returns ENOSYS for Landlock's first system call, in the program and all that it starts.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import Final

_LANDLOCK_CREATE_RULESET: Final = 444
_ENOSYS: Final = 38
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
# From <linux/bpf_common.h> and <linux/seccomp.h>: load a word, jump if equal, return.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def main() -> None:
    steps = [
        (_LOAD, 0, 0, 0),
        (_JUMP_IF_EQUAL, 0, 1, _LANDLOCK_CREATE_RULESET),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(fprog), 0, 0),
    ):
        if libc.prctl(*map(ctypes.c_ulong, call)) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
