"""Open files of the client, as the raw files below Python's buffered files."""

import fcntl
import io
import os
import tempfile
from typing import Any, Final

from remotegpu_offload.files.cache import BLOCK, MOST_AHEAD, Copy
from remotegpu_offload.files.remote import RemoteFiles, Written

READ_BUFFER: Final = 1 << 20
WRITE_BUFFER: Final = 64 << 10
# The client writes each piece while the next one is sent.
_WRITE_PIECE: Final = 4 << 20


class PagedFile(io.RawIOBase):
    """One open file. Reads are served from a copy in the session's folder; writes are sent at once and in order.

    If the program asks for the descriptor, it gets one of a complete copy in the session's folder, and all further
    reads and writes use that copy. Data that the program writes through the descriptor is sent to the client when the
    file is closed. Every method raises OSError as for a local file; errors of writes are raised by `close` at the
    latest.
    """

    def __init__(self, remote: RemoteFiles, path: str, flags: int, mode: int = 0o666) -> None:
        super().__init__()
        self.name: Any = path
        self.path = path
        self._remote = remote
        self._flags = flags
        self._handle = 0
        self._copy: Copy | None = None
        self._fd = -1
        self._written: Written | None = None
        self._position: int = 0
        access = flags & os.O_ACCMODE
        self._reads = access in (os.O_RDONLY, os.O_RDWR)
        self._writes = access in (os.O_WRONLY, os.O_RDWR)
        known = None if self._writes else remote.cache.known(path)
        reply = remote.ask(
            "open",
            path,
            flags=flags,
            mode=mode,
            have=None if known is None else known[0],
            complete=known is not None and known[1],
        )
        self._handle = reply.header.get("handle", 0)
        self._size: int = reply.header["stat"][6]
        if self._writes:
            self._position = self._size if flags & os.O_APPEND else 0
        else:
            self._copy = remote.cache.take(path, reply.header["key"], self._size)
            if reply.buffers:
                remote.counters["bytes_read"] += len(reply.buffers[0])
                self._copy.put(0, reply.buffers[0])

    @property
    def mode(self) -> str:
        if self._reads:
            return "rb+" if self._writes else "rb"
        return "ab" if self._flags & os.O_APPEND else "wb"

    def readable(self) -> bool:
        self._check_open()
        return self._reads

    def writable(self) -> bool:
        self._check_open()
        return self._writes

    def seekable(self) -> bool:
        self._check_open()
        return True

    def readinto(self, buffer: Any) -> int:
        self._check_open()
        if not self._reads:
            raise io.UnsupportedOperation("not readable")
        view = memoryview(buffer).cast("B")
        if self._fd >= 0:
            return int(os.readv(self._fd, [view]))
        most = len(view) if self._copy is not None else min(len(view), MOST_AHEAD * BLOCK)
        count = max(0, min(most, self._size - self._position))
        if count:
            self._read_at(view[:count], self._position)
        self._position += count
        return count

    def readall(self) -> bytes:
        if self._fd >= 0 or self._copy is None:
            return bytes(super().readall() or b"")
        count = max(0, self._size - self._position)
        self._copy.need(self._position, count, self._fetch)
        content = os.pread(self._copy.fd, count, self._position)
        self._position += len(content)
        return content

    def write(self, buffer: Any) -> int:
        self._check_open()
        if not self._writes:
            raise io.UnsupportedOperation("not writable")
        view = memoryview(buffer).cast("B")
        if self._fd >= 0:
            count = os.write(self._fd, view)
            if self._written is not None:
                self._written.show(bytes(view[:count]), os.lseek(self._fd, 0, os.SEEK_CUR) - count)
            return count
        if self._flags & os.O_APPEND:
            self._position = self._size
        self._remote.counters["bytes_written"] += len(view)
        for at in range(0, len(view), _WRITE_PIECE):
            # Copied, because the writer may reuse the buffer at once.
            piece = bytes(view[at : at + _WRITE_PIECE])
            self._remote.tell("write", [piece], handle=self._handle, offset=self._position)
            self._position += len(piece)
        self._size = max(self._size, self._position)
        return len(view)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check_open()
        if self._fd >= 0:
            return int(os.lseek(self._fd, offset, whence))
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}
        if whence not in bases:
            raise ValueError(f"invalid whence value: {whence}")
        position = bases[whence] + offset
        if position < 0:
            raise OSError(22, os.strerror(22))
        self._position = position
        return position

    def tell(self) -> int:
        return self.seek(0, os.SEEK_CUR)

    def truncate(self, size: int | None = None) -> int:
        self._check_open()
        if not self._writes:
            raise io.UnsupportedOperation("truncate")
        size = self.tell() if size is None else size
        if self._fd >= 0:
            os.ftruncate(self._fd, size)
        else:
            self._remote.tell("truncate", handle=self._handle, size=size)
            self._size = size
        return size

    def fileno(self) -> int:
        self._check_open()
        if self._fd < 0:
            self._fd = self._local_copy()
            os.lseek(self._fd, self._position, os.SEEK_SET)
        return self._fd

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        if self.closed:
            return
        handle, self._handle = self._handle, 0
        written, self._written = self._written, None
        try:
            super().close()
            if written is not None:
                written.write_back()
        finally:
            if self._copy is not None:
                self._remote.cache.give_back(self._copy)
                self._copy = None
            if written is not None and written.is_mapped():
                self._remote.ask("close", self.path, handle=handle, keep=True)
                self._remote.mapped.append(written)
            elif written is not None:
                written.close()
            else:
                self._close(handle)

    def _close(self, handle: int) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        if handle and self._writes:
            self._remote.ask("close", self.path, handle=handle)
        elif handle:
            self._remote.tell("close", handle=handle)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _read_at(self, view: memoryview, offset: int) -> None:
        if self._copy is None:
            content = self._fetch(offset, len(view))
            view[: len(content)] = content
            return
        self._copy.need(offset, len(view), self._fetch)
        os.preadv(self._copy.fd, [view], offset)

    def _fetch(self, offset: int, count: int) -> memoryview:
        """Reads a range from the client, at most 16 MiB per request."""
        content = self._remote.ask("read", handle=self._handle, offset=offset, count=count).buffers[0]
        self._remote.counters["bytes_read"] += len(content)
        return memoryview(content)

    def _local_copy(self) -> int:
        if self._copy is not None:
            self._copy.need(0, self._size, self._fetch)
            return os.open(self._copy.path, os.O_RDONLY | os.O_CLOEXEC)
        fd, path = tempfile.mkstemp(dir=self._remote.cache.folder, prefix="written-")
        os.unlink(path)
        self._written = Written(self._remote, self._handle, fd)
        for offset in range(0, self._size, BLOCK):
            content = self._fetch(offset, min(BLOCK, self._size - offset))
            os.pwrite(fd, content, offset)
            self._written.known(content)
        if self._flags & os.O_APPEND:
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
        return fd
