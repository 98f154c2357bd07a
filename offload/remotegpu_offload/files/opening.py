"""Opens paths from an untrusted peer, safe against changes between the check and the opening.

A path is first resolved, and the rules decide about the result. Then the folder is opened, and the kernel reports the
real path of the open folder. This detects a folder or link that was replaced in the meantime. All further steps are
relative to the open folder and follow no link.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator


class MovedError(PermissionError):
    """The path led to another file when it was opened than when it was checked."""


@contextlib.contextmanager
def folder_of(real: str) -> Iterator[tuple[int, str]]:
    """Opens the folder of a resolved path. Yields its descriptor, and the name in it.

    Raises the OSError of the file system, or MovedError.
    """
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
    """Opens a regular file by its resolved path. The caller closes the descriptor.

    Raises OSError, also for links, devices, pipes and sockets.
    """
    with folder_of(real) as (folder, name):
        # Without these flags, a pipe without a writer would block, and a terminal could become this process's.
        opened = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode, dir_fd=folder)
        kind = os.fstat(opened).st_mode
        if not stat.S_ISREG(kind):
            os.close(opened)
            if stat.S_ISDIR(kind):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), real)
            raise PermissionError(errno.EACCES, "only regular files are served", real)
        return opened


def read_regular(real: str, limit: int) -> bytes:
    """Returns the content of a regular file of at most `limit` bytes. Raises OSError (EFBIG if the file is larger)."""
    with os.fdopen(open_regular(real, os.O_RDONLY), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit >> 20} MiB", real)
    return content


def resolve(path: str, allowed: Callable[[str], bool]) -> str | None:
    """Returns the real path if the rules allow it, else None. The path need not exist."""
    real = os.path.realpath(path)
    return real if allowed(real) else None
