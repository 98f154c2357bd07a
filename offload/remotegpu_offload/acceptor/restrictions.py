"""Restrictions that a session can never lift: seccomp for system calls, Landlock for files and other processes.

The library of `remoting/sandbox` defines them. This module loads that library; the worker links the same code.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from remotegpu.paths import NotBuiltError, find_dist

_NO_LANDLOCK: Final = 1
_LONGEST_MESSAGE: Final = 500


@cache
def library() -> ctypes.CDLL:
    """Loads the library; forks of the zygote inherit it. Raises OSError with a sentence for users."""
    try:
        path = find_dist().sandbox
    except NotBuiltError as error:
        raise OSError(errno.ENOENT, f"nothing can shut sessions in: {error}") from None
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise OSError(
            errno.ENOEXEC,
            f"nothing can shut sessions in: this Python cannot load {path} ({error}); it needs Linux on x86_64 with "
            "glibc 2.17 or later, and leave to read that file",
        ) from None


def give_up_files(readable: Sequence[Path], hidden: Sequence[Path], writable: Sequence[Path], *, network: bool) -> bool:
    """Restricts the files of this process and its children.

    They may read only beneath `readable`, read nothing in `hidden`, and write only beneath `writable`. `network` says
    whether TCP stays possible. Returns False if this kernel has no Landlock. Raises OSError if the kernel refuses.
    """
    buffers = [b"\0".join(map(os.fsencode, paths)) for paths in (readable, hidden, writable)]
    sized = [argument for one in buffers for argument in (one, ctypes.c_size_t(len(one)))]
    return _called(library().remotegpu_sandbox_files, *sized, ctypes.c_bool(network)) != _NO_LANDLOCK


def give_up_calls(*, alone: bool) -> None:
    """Restricts the system calls of this process and its children. Raises OSError if the kernel refuses.

    `alone`: no namespace separates sessions, so the process may neither start others nor open connections.
    """
    _called(library().remotegpu_sandbox_calls, ctypes.c_bool(alone))


def _called(function: Callable[..., int], *arguments: Any) -> int:
    message = ctypes.create_string_buffer(_LONGEST_MESSAGE)
    result = function(*arguments, message, ctypes.c_size_t(len(message)))
    if result < 0:
        raise OSError(errno.EPERM, f"the kernel refuses to restrict it: {message.value.decode(errors='replace')}")
    return result
