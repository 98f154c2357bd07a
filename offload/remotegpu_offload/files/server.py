"""The client's half of file paging: opens, reads, writes and lists only files that the configuration allows."""

import contextlib
import errno
import json
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from remotegpu_offload.files.opening import folder_of, open_regular
from remotegpu_offload.files.rules import PathError, Rules, checked
from remotegpu_offload.wire.frames import Buffer, Message, Service
from remotegpu_offload.wire.peer import Peer
from remotegpu_offload.wire.request import Request

BLOCK: Final = 1 << 20
LARGEST_READ: Final = 16 * BLOCK
MOST_HANDLES: Final = 4096
MOST_REFUSED: Final = 100
_OPEN_FLAGS: Final = os.O_ACCMODE | os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_APPEND
# The allowed mode bits: the acceptor may not set the set-user-id, set-group-id and sticky bits.
_MODES: Final = 0o777

Reader = Callable[[str], bool]


@dataclass(slots=True)
class _Open:
    """A file that the acceptor has open. The first error of a write is reported when the file is closed."""

    fd: int
    peer: Peer | None
    writable: bool
    error: OSError | None = None


class FileServer:
    """Serves one session's acceptors, within the rules and for real paths that `also` allows (served packages).

    `cwd` is the folder of relative paths. `cache_bytes` is the size of the acceptor's cache. `counters`: requests by
    operation, `bytes_read`, `bytes_written`, `refused`. `refused` holds the first refused paths.
    """

    def __init__(
        self, rules: Rules, cwd: str, also: Reader = lambda _real: False, *, cache_bytes: int = 4 << 30
    ) -> None:
        self.cache_bytes = cache_bytes
        self.rules = rules
        self.cwd = cwd
        self.counters: Counter[str] = Counter()
        self.refused: dict[str, str] = {}
        self._also = also
        self._open: dict[int, _Open] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._operations: Mapping[str, Callable[[dict[str, Any]], Message]] = {
            "open": self._open_file,
            "read": self._read,
            "close": self._close,
            "stat": self._stat,
            "list": self._list,
            "mkdir": self._mkdir,
            "remove": self._remove,
            "rmdir": self._rmdir,
            "rename": self._rename,
            "readlink": self._readlink,
            "access": self._access,
            "chmod": self._chmod,
            "utime": self._utime,
        }

    def attach(self, peer: Peer) -> None:
        """Serves this acceptor from now on. When the connection ends, files that are still open are closed."""
        self._close_left()
        peer.serve(Service.FILES, lambda request: self.answer(request, peer))
        peer.on_lost.append(lambda _reason: self._close_left())

    def hello(self) -> dict[str, Any]:
        """Returns this service's part of the greeting: the folders that belong to the client."""
        areas = sorted({*self.rules.roots, os.path.realpath(self.cwd), self.cwd})
        return {"areas": areas, "cwd": self.cwd, "cache": self.cache_bytes}

    def _close_left(self) -> None:
        with self._lock:
            left = [n for n, file in self._open.items() if file.peer is not None and file.peer.closed.is_set()]
            files = [self._open.pop(number) for number in left]
        for file in files:
            with contextlib.suppress(OSError):
                os.close(file.fd)

    def answer(self, request: Request, peer: Peer | None = None) -> Message | None:
        """Handles one request or notice. An error of a file becomes an answer: `error` with number and reason."""
        header = request.header
        name = str(header.get("op"))
        if name in ("write", "truncate"):
            self._change(name, header, request.buffers)
            return None if request.id == 0 else Message({})
        operation = self._operations.get(name)
        if operation is None:
            raise PathError(f"the file server knows no {name!r}")
        self.counters[name] += 1
        try:
            return self._open_file(header, peer) if name == "open" else operation(header)
        except OSError as error:
            return Message({"error": [error.errno or errno.EIO, error.strerror or str(error)]})
        except (PathError, UnicodeError) as error:
            return Message({"error": [errno.EINVAL, str(error)]})

    # --- permissions ---

    def may_read(self, real: str) -> bool:
        return self.rules.may_read(real) or self._also(real)

    def may_look(self, real: str) -> bool:
        return self.rules.may_look(real) or self._also(real) or real == os.path.realpath(self.cwd)

    def _file(self, path: object, allowed: Reader, rule: str = "read") -> str:
        """Returns the real path of a file, with all links resolved.

        Raises PermissionError that names the deciding rule.
        """
        real = os.path.realpath(checked(path))
        return self._judged(str(path), real, allowed, rule)

    def _entry(self, path: object, allowed: Reader, rule: str = "write") -> str:
        """Returns the real path of a folder's entry; a link as entry is not followed. Raises PermissionError."""
        head, _, name = checked(path).rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            raise PathError(f"{path!r} names no entry of a folder")
        real = os.path.join(os.path.realpath(head or "/"), name)
        return self._judged(str(path), real, allowed, rule)

    def _judged(self, path: str, real: str, allowed: Reader, rule: str) -> str:
        if allowed(real):
            return real
        self.counters["refused"] += 1
        if len(self.refused) < MOST_REFUSED:
            self.refused[path] = rule
        led = "" if real == path else f" (it leads to {real})"
        raise PermissionError(
            errno.EACCES, f"files.{rule} of the client's remotegpu.yaml does not name it{led}: add it there", path
        )

    # --- open files ---

    def _open_file(self, header: dict[str, Any], peer: Peer | None = None) -> Message:
        """Opens a file, and sends the first block with the answer. A file of one block needs no handle."""
        flags = int(header["flags"]) & _OPEN_FLAGS
        writes = flags & os.O_ACCMODE != os.O_RDONLY or flags & (os.O_CREAT | os.O_TRUNC)
        if writes:
            real = self._file(header.get("path"), self.rules.may_write, "write")
        else:
            real = self._file(header.get("path"), self.may_read)
        fd = _open_for(real, flags, int(header.get("mode", 0o666)) & _MODES)
        try:
            status = os.fstat(fd)
            reply: dict[str, Any] = {"stat": status_of(status)}
            first: list[Buffer] = []
            if not writes:
                reply["key"] = key = key_of(real, status)
                if header.get("have") == key and header.get("complete"):
                    os.close(fd)
                    return Message(reply)
                if header.get("have") != key:
                    first = [os.pread(fd, BLOCK, 0)]
                    self.counters["bytes_read"] += len(first[0])
                    if status.st_size <= BLOCK:
                        os.close(fd)
                        return Message(reply, first)
            with self._lock:
                if len(self._open) >= MOST_HANDLES:
                    raise OSError(errno.EMFILE, f"the acceptor has {MOST_HANDLES} files of the client open")
                self._next += 1
                self._open[self._next] = _Open(fd, peer, bool(writes))
                reply["handle"] = self._next
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(fd)
            raise
        return Message(reply, first)

    def _handle(self, header: dict[str, Any]) -> _Open:
        file = self._open.get(header.get("handle", 0))
        if file is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file

    def _read(self, header: dict[str, Any]) -> Message:
        offset, count = int(header["offset"]), int(header["count"])
        if not 0 <= count <= LARGEST_READ or offset < 0:
            raise OSError(errno.EINVAL, f"a read is of 0 to {LARGEST_READ} bytes")
        content = os.pread(self._handle(header).fd, count, offset)
        self.counters["bytes_read"] += len(content)
        return Message({}, [content])

    def _change(self, name: str, header: dict[str, Any], buffers: Any) -> None:
        file = self._open.get(header.get("handle", 0))
        if file is None or file.error is not None:
            return
        try:
            if not file.writable:
                raise OSError(errno.EBADF, "the file is not open for writing")
            if name == "truncate":
                os.ftruncate(file.fd, int(header["size"]))
                return
            offset = int(header["offset"])
            for buffer in buffers:
                rest = memoryview(buffer)
                self.counters["bytes_written"] += len(rest)
                while rest:
                    written = os.pwrite(file.fd, rest, offset)
                    rest = rest[written:]
                    offset += written
        except (OSError, OverflowError) as error:
            file.error = error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))

    def _close(self, header: dict[str, Any]) -> Message:
        file = self._handle(header)
        keep = bool(header.get("keep"))
        if not keep:
            with self._lock:
                del self._open[header["handle"]]
        try:
            if file.error is not None:
                error, file.error = file.error, None
                raise error
            return Message({"stat": status_of(os.fstat(file.fd))})
        finally:
            if not keep:
                os.close(file.fd)

    # --- folders and names ---

    def _stat(self, header: dict[str, Any]) -> Message:
        find = self._file if header.get("follow", True) else self._entry
        real = find(header.get("path"), self.may_look, "read")
        with folder_of(real) as (folder, name):
            return Message({"stat": status_of(os.stat(name, dir_fd=folder, follow_symlinks=False))})

    def _list(self, header: dict[str, Any]) -> Message:
        real = self._file(header.get("path"), self.may_read)
        with folder_of(real) as (parent, name):
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            entries = list(self._entries(fd, real))
        finally:
            os.close(fd)
        return Message({}, [json.dumps(entries).encode()])

    def _entries(self, fd: int, real: str) -> Iterator[tuple[str, list[int]]]:
        for name in os.listdir(fd):
            if self.may_look(f"{real.rstrip('/')}/{name}"):
                with contextlib.suppress(FileNotFoundError):
                    yield name, status_of(os.stat(name, dir_fd=fd, follow_symlinks=False))

    def _mkdir(self, header: dict[str, Any]) -> Message:
        with folder_of(self._entry(header.get("path"), self.rules.may_write)) as (folder, name):
            os.mkdir(name, int(header.get("mode", 0o777)) & _MODES, dir_fd=folder)
        return Message({})

    def _remove(self, header: dict[str, Any]) -> Message:
        with folder_of(self._entry(header.get("path"), self.rules.may_write)) as (folder, name):
            os.unlink(name, dir_fd=folder)
        return Message({})

    def _rmdir(self, header: dict[str, Any]) -> Message:
        with folder_of(self._entry(header.get("path"), self.rules.may_write)) as (folder, name):
            os.rmdir(name, dir_fd=folder)
        return Message({})

    def _rename(self, header: dict[str, Any]) -> Message:
        source = self._entry(header.get("path"), self.rules.may_write)
        target = self._entry(header.get("to"), self.rules.may_write)
        with folder_of(source) as (folder, name), folder_of(target) as (to_folder, to_name):
            os.rename(name, to_name, src_dir_fd=folder, dst_dir_fd=to_folder)
        return Message({})

    def _readlink(self, header: dict[str, Any]) -> Message:
        with folder_of(self._entry(header.get("path"), self.may_look, "read")) as (folder, name):
            return Message({"target": os.readlink(name, dir_fd=folder)})

    def _access(self, header: dict[str, Any]) -> Message:
        real = os.path.realpath(checked(header.get("path")))
        mode = int(header.get("mode", 0)) & (os.R_OK | os.W_OK | os.X_OK)
        allowed = self.may_look(real)
        if mode & os.W_OK:
            allowed = allowed and self.rules.may_write(real)
        if mode & os.R_OK:
            allowed = allowed and (self.may_read(real) or os.path.isdir(real))
        if not allowed:
            return Message({"access": False})
        with contextlib.suppress(OSError), folder_of(real) as (folder, name):
            return Message({"access": os.access(name, mode, dir_fd=folder)})
        return Message({"access": False})

    def _chmod(self, header: dict[str, Any]) -> Message:
        fd = _open_any(self._file(header.get("path"), self.rules.may_write, "write"))
        try:
            os.fchmod(fd, int(header["mode"]) & _MODES)
        finally:
            os.close(fd)
        return Message({})

    def _utime(self, header: dict[str, Any]) -> Message:
        times = header.get("times")
        with folder_of(self._file(header.get("path"), self.rules.may_write, "write")) as (folder, name):
            if times is None:
                os.utime(name, dir_fd=folder, follow_symlinks=False)
            else:
                os.utime(name, ns=(int(times[0]), int(times[1])), dir_fd=folder, follow_symlinks=False)
        return Message({})


def status_of(status: os.stat_result) -> list[int]:
    """Returns the fields of a stat_result that are sent: ten as in `os.stat_result`, times in nanoseconds."""
    return [
        status.st_mode,
        status.st_ino,
        status.st_dev,
        status.st_nlink,
        status.st_uid,
        status.st_gid,
        status.st_size,
        status.st_atime_ns,
        status.st_mtime_ns,
        status.st_ctime_ns,
    ]


def key_of(real: str, status: os.stat_result) -> list[Any]:
    """Returns the key of a cached copy. Equal keys mean equal content."""
    return [real, status.st_ino, status.st_size, status.st_mtime_ns]


def _open_for(real: str, flags: int, mode: int) -> int:
    if flags & os.O_ACCMODE == os.O_WRONLY:
        # Opened for reading too, because the program may ask for a descriptor and read its written data.
        with contextlib.suppress(PermissionError):
            return open_regular(real, flags & ~os.O_ACCMODE | os.O_RDWR, mode)
    return open_regular(real, flags, mode)


def _open_any(real: str) -> int:
    """Opens a file or folder, to change its mode."""
    with folder_of(real) as (folder, name):
        kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise PermissionError(errno.EACCES, "only regular files and folders are served", real)
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
