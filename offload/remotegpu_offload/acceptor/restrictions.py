"""Restrictions that a session can never undo: system calls by seccomp, files and other processes by Landlock.

`remoting/sandbox` defines them. Its library is loaded here; the worker links the same code.
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
    """Loads the library, once in the zygote, whose forks have it. Raises OSError with the sentence for people."""
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
    """Restricts this process and its children: they may read beneath `readable` only and nothing `hidden`, and write
    beneath `writable` only.

    `network`: whether TCP stays possible. False if this kernel has no Landlock. Raises OSError if it refuses.
    """
    buffers = [b"\0".join(map(os.fsencode, paths)) for paths in (readable, hidden, writable)]
    sized = [argument for one in buffers for argument in (one, ctypes.c_size_t(len(one)))]
    return _called(library().remotegpu_sandbox_files, *sized, ctypes.c_bool(network)) != _NO_LANDLOCK


def give_up_calls(*, alone: bool) -> None:
    """Restricts the system calls of this process and its children. `alone`: no namespace keeps sessions apart, so it is
    one process without connections. Raises OSError if the kernel refuses."""
    _called(library().remotegpu_sandbox_calls, ctypes.c_bool(alone))


def _called(function: Callable[..., int], *arguments: Any) -> int:
    message = ctypes.create_string_buffer(_LONGEST_MESSAGE)
    result = function(*arguments, message, ctypes.c_size_t(len(message)))
    if result < 0:
        raise OSError(errno.EPERM, f"the kernel refuses to restrict it: {message.value.decode(errors='replace')}")
    return result
