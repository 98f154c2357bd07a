"""Opens what a stranger named, without being led elsewhere between the check and the opening.

A name is resolved first, and the result is judged by the rules. Then the folder is opened, and the kernel is asked
where that folder really is: a folder or link that was exchanged in the meantime is noticed. Everything after that is
relative to the open folder and follows no link.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator


class MovedError(PermissionError):
    """The path led elsewhere when it was opened than when it was checked."""


@contextlib.contextmanager
def folder_of(real: str) -> Iterator[tuple[int, str]]:
    """The open folder of a resolved path, and the name in it. Raises OSError as the file system does, MovedError."""
    head, _, name = real.rpartition("/")
    head = head or "/"
    folder = os.open(head, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.readlink(f"/proc/self/fd/{folder}") != head:
            raise MovedError(errno.EACCES, "the path was changed while it was being opened", real)
        yield folder, name or "."
    except OSError as error:
        if error.filename is not None and not isinstance(error, MovedError):
            error.filename = real
        raise
    finally:
        os.close(folder)


def open_regular(real: str, flags: int, mode: int = 0o666) -> int:
    """A regular file by its resolved path; links, devices, pipes and sockets are refused. The caller closes it."""
    with folder_of(real) as (folder, name):
        # A pipe without a partner would hold us up, a terminal could become ours.
        opened = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode, dir_fd=folder)
        kind = os.fstat(opened).st_mode
        if not stat.S_ISREG(kind):
            os.close(opened)
            if stat.S_ISDIR(kind):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), real)
            raise PermissionError(errno.EACCES, "only regular files are served", real)
        return opened


def read_regular(real: str, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises OSError (EFBIG if it is larger)."""
    with os.fdopen(open_regular(real, os.O_RDONLY), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit >> 20} MiB", real)
    return content


def resolve(path: str, allowed: Callable[[str], bool]) -> str | None:
    """The real path, if the rules allow it; None if not. The path itself need not exist."""
    real = os.path.realpath(path)
    return real if allowed(real) else None
