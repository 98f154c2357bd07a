"""The acceptor's half of file paging: Python's file functions access the client's files if a path is the client's.

Covered: `open`, `io.open`, `os.open`, `pathlib`, `os.stat` and functions based on it (`os.path`), listing, making,
removing and renaming, `os.getcwd` and `os.chdir`, `shutil`, `glob`, `np.load`, `np.fromfile`, `np.memmap` (reading),
`mmap`, pandas, `torch.save`, `torch.load`, and other code that is written in Python or asks Python for a descriptor.
`adapters.py` also covers `sqlite3`, `h5py`, and Parquet by Arrow.

Not covered: other libraries in C that open a path (cv2, `torch.load(mmap=True)`), and started programs. They call the
kernel directly, and the kernel finds no such file. Links and descriptors of folders (`dir_fd`) do not reach the client
either. Data that is written through a memory map after its file was closed is sent when the program next accesses a
file, or ends.
"""

import builtins
import contextlib
import errno
import io
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from remotegpu_offload import OURS
from remotegpu_offload.code.finder import Finder
from remotegpu_offload.files import adapters
from remotegpu_offload.files.areas import Areas
from remotegpu_offload.files.cache import Cache
from remotegpu_offload.files.entries import Entry, Scan
from remotegpu_offload.files.modes import Descriptor, flags_of, wrapped
from remotegpu_offload.files.paged import PagedFile
from remotegpu_offload.files.remote import RemoteFiles
from remotegpu_offload.wire.frames import Service

if TYPE_CHECKING:
    from remotegpu_offload.acceptor.session import AcceptorSession

_DEFAULT_CACHE: Final = 4 << 30
# Modules that keep the real `open` and `os` functions.
_NOT_PATCHED: Final = ("os", "posix", "io", "_io", "_pyio", "builtins", "importlib", "zipimport", *OURS)


class Layer:
    """Replaces functions of `os`, `io` and `builtins` in this process. `real` holds the original functions."""

    def __init__(self, remote: RemoteFiles, areas: Areas, cwd: str | None) -> None:
        self.remote = remote
        self.areas = areas
        self.cwd = cwd
        self.real: dict[str, Any] = {}
        self._descriptors: dict[int, PagedFile] = {}
        self._replaced: list[tuple[Any, str, Any]] = []
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()

    # --- owners of paths ---

    def theirs(self, path: Any) -> str | None:
        """Returns the absolute path at the client; None if the path belongs to the acceptor, or is a descriptor."""
        if isinstance(path, int) or path is None:
            return None
        try:
            text = os.fsdecode(path)
        except TypeError:
            return None
        if not text:
            return None
        if not text.startswith("/"):
            if self.cwd is None:
                return None
            text = f"{self.cwd.rstrip('/')}/{text}"
        return text if self.areas.is_clients(os.path.normpath(text)) else None

    # --- files ---

    def open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[str, int], int] | None = None,
    ) -> Any:
        """Replaces `io.open`: opens a file of the client if the path is the client's."""
        path = self.theirs(file)
        known = self._descriptors.get(file) if isinstance(file, int) else None
        if (path is None and known is None) or not isinstance(mode, str):
            return self.real["open"](file, mode, buffering, encoding, errors, newline, closefd, opener)
        flags = flags_of(mode)
        if opener is not None and path is not None:
            # `tempfile` opens a folder with an opener that returns a descriptor of another file.
            descriptor = opener(file, flags | os.O_CLOEXEC)
            path, known = None, self._descriptors.get(descriptor)
            if known is None:
                given = lambda _path, _flags: descriptor  # noqa: E731
                return self.real["open"](file, mode, buffering, encoding, errors, newline, True, given)
        binary = "b" in mode
        if binary and (encoding is not None or errors is not None or newline is not None):
            raise ValueError("binary mode doesn't take an encoding, errors or newline argument")
        if buffering == 0 and not binary:
            raise ValueError("can't have unbuffered text I/O")
        if path is not None:
            raw: Any = PagedFile(self.remote, path, flags)
            raw.name = file
        else:
            raw = Descriptor(known, closefd, self.os_close)
        try:
            opened = wrapped(raw, mode, buffering, encoding, errors, newline)
        except BaseException:
            raw.close()
            raise
        self._opened.add(opened)
        return opened

    def flush(self) -> None:
        """Sends the program's written data to the client, also for files that are still open."""
        for file in list(self._opened):
            with contextlib.suppress(OSError, ValueError):
                file.flush()

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Replaces `os.open`: returns the descriptor of a copy, which is sent to the client when the program closes
        it."""
        theirs = self.theirs(path) if dir_fd is None else None
        if theirs is None:
            return int(self.real["os.open"](path, flags, mode, dir_fd=dir_fd))
        if flags & os.O_DIRECTORY:
            raise OSError(errno.ENOTSUP, "folders of the client have no descriptors here", theirs)
        file = PagedFile(self.remote, theirs, flags, mode)
        descriptor = file.fileno()
        self._descriptors[descriptor] = file
        return descriptor

    def os_close(self, fd: int) -> None:
        file = self._descriptors.pop(fd, None)
        if file is None:
            self.real["os.close"](fd)
        else:
            file.close()

    # --- status ---

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        theirs = self.theirs(path) if dir_fd is None else None
        if theirs is None:
            found: os.stat_result = self.real["os.stat"](path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
            return found
        return self.remote.stat(theirs, follow=follow_symlinks)

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        return self.stat(path, dir_fd=dir_fd, follow_symlinks=False)

    def access(
        self,
        path: Any,
        mode: int,
        *,
        dir_fd: int | None = None,
        effective_ids: bool = False,
        follow_symlinks: bool = True,
    ) -> bool:
        theirs = self.theirs(path) if dir_fd is None else None
        if theirs is None:
            more = {"dir_fd": dir_fd, "effective_ids": effective_ids, "follow_symlinks": follow_symlinks}
            return bool(self.real["os.access"](path, mode, **more))
        return bool(self.remote.ask("access", theirs, mode=mode).header["access"])

    def readlink(self, path: Any, *, dir_fd: int | None = None) -> Any:
        theirs = self.theirs(path) if dir_fd is None else None
        if theirs is None:
            return self.real["os.readlink"](path, dir_fd=dir_fd)
        target = self.remote.ask("readlink", theirs).header["target"]
        return os.fsencode(target) if isinstance(path, bytes) else target

    # --- folders ---

    def listdir(self, path: Any = None) -> list[Any]:
        theirs = self.theirs("." if path is None else path)
        if theirs is None:
            return list(self.real["os.listdir"](path))
        names = [name for name, _ in self.remote.list(theirs)]
        return list(map(os.fsencode, names)) if isinstance(path, bytes) else names

    def scandir(self, path: Any = None) -> Any:
        theirs = self.theirs("." if path is None else path)
        if theirs is None:
            return self.real["os.scandir"](path)
        shown = "." if path is None else os.fspath(path)
        return Scan(Entry(shown, name, status, self.stat) for name, status in self.remote.list(theirs))

    def getcwd(self) -> str:
        return str(self.real["os.getcwd"]()) if self.cwd is None else self.cwd

    def getcwdb(self) -> bytes:
        return os.fsencode(self.getcwd())

    def chdir(self, path: Any) -> None:
        theirs = self.theirs(path)
        if theirs is None:
            self.real["os.chdir"](path)
            self.cwd = None
            return
        status = self.remote.stat(theirs)
        if status.st_mode & 0o170000 != 0o040000:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self.cwd = os.path.normpath(theirs)

    # --- changes ---

    def changer(self, name: str, op: str, *fields: str) -> Callable[..., None]:
        """Returns a replacement for a function of `os` that changes one path."""

        def change(path: Any, *values: Any, dir_fd: int | None = None, **more: Any) -> None:
            theirs = self.theirs(path) if dir_fd is None else None
            if theirs is None:
                # Some of these functions do not take `dir_fd`.
                given = more if dir_fd is None else more | {"dir_fd": dir_fd}
                self.real[name](path, *values, **given)
                return
            given = dict(zip(fields, values, strict=False)) | {key: more[key] for key in fields if key in more}
            self.remote.ask(op, theirs, **given)

        return change

    def utime(
        self, path: Any, times: Any = None, *, ns: Any = None, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> None:
        theirs = self.theirs(path) if dir_fd is None else None
        if theirs is None:
            more: dict[str, Any] = {} if ns is None else {"ns": ns}
            self.real["os.utime"](path, times, dir_fd=dir_fd, follow_symlinks=follow_symlinks, **more)
            return
        if times is not None:
            ns = [round(seconds * 1e9) for seconds in times]
        self.remote.ask("utime", theirs, times=None if ns is None else list(ns))

    def renamer(self, name: str) -> Callable[..., None]:
        def rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            source, target = self.theirs(src), self.theirs(dst)
            if (source is None and target is None) or src_dir_fd is not None or dst_dir_fd is not None:
                self.real[name](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            elif source is None or target is None:
                # The same error as between two file systems: `shutil.move` then copies the file.
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), src, None, dst)
            else:
                self.remote.ask("rename", source, to=target)

        return rename

    def linker(self, name: str) -> Callable[..., None]:
        def link(src: Any, dst: Any, *args: Any, **more: Any) -> None:
            target = self.theirs(dst)
            if target is not None:
                raise PermissionError(errno.EPERM, "links are not made at the client", target)
            self.real[name](src, dst, *args, **more)

        return link

    def listxattr(self, path: Any = None, *, follow_symlinks: bool = True) -> list[str]:
        if self.theirs("." if path is None else path) is not None:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), path)
        return list(self.real["os.listxattr"](path, follow_symlinks=follow_symlinks))

    def truncate(self, path: Any, length: int) -> None:
        theirs = self.theirs(path)
        if theirs is None:
            self.real["os.truncate"](path, length)
            return
        with PagedFile(self.remote, theirs, os.O_WRONLY) as file:
            file.truncate(length)

    # --- installation ---

    def install(self) -> None:
        replacements: dict[str, Any] = {
            "open": self.open,
            "os.open": self.os_open,
            "os.close": self.os_close,
            "os.stat": self.stat,
            "os.lstat": self.lstat,
            "os.access": self.access,
            "os.readlink": self.readlink,
            "os.listdir": self.listdir,
            "os.scandir": self.scandir,
            "os.getcwd": self.getcwd,
            "os.getcwdb": self.getcwdb,
            "os.chdir": self.chdir,
            "os.mkdir": self.changer("os.mkdir", "mkdir", "mode"),
            "os.rmdir": self.changer("os.rmdir", "rmdir"),
            "os.remove": self.changer("os.remove", "remove"),
            "os.unlink": self.changer("os.unlink", "remove"),
            "os.chmod": self.changer("os.chmod", "chmod", "mode"),
            "os.utime": self.utime,
            "os.rename": self.renamer("os.rename"),
            "os.replace": self.renamer("os.replace"),
            "os.link": self.linker("os.link"),
            "os.symlink": self.linker("os.symlink"),
            "os.truncate": self.truncate,
            "os.listxattr": self.listxattr,
        }
        self.real = {name: getattr(os, name[3:]) for name in replacements if name.startswith("os.")}
        self.real["open"] = io.open
        for supported in (os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            supported.update(new for name, new in replacements.items() if self.real[name] in supported)
        by_identity = {id(self.real[name]): replacement for name, replacement in replacements.items()}
        by_identity[id(io.open)] = self.open
        for name, replacement in replacements.items():
            if name.startswith("os."):
                self.replace(os, name[3:], replacement)
        for module in (io, builtins):
            self.replace(module, "open", self.open)
        self.replace(io, "open_code", lambda path: self.open(path, "rb"))
        # With descriptors, `shutil` would need those of folders.
        self.replace(shutil, "_use_fd_functions", False)
        self._replace_copies(by_identity)
        adapters.install(self)

    def remove(self) -> None:
        for module, name, before in reversed(self._replaced):
            setattr(module, name, before)
        self._replaced.clear()

    def replace(self, module: Any, name: str, replacement: Any) -> None:
        """Replaces an attribute until `remove` is called."""
        self._replaced.append((module, name, getattr(module, name)))
        setattr(module, name, replacement)

    def _replace_copies(self, replacements: Mapping[int, Any]) -> None:
        """Replaces the copies in modules that have already executed `from os import stat`."""
        for name, module in list(sys.modules.items()):
            if module is None or name.partition(".")[0] in _NOT_PATCHED or name.startswith("importlib"):
                continue
            try:
                own = list(vars(module).items())
            except TypeError:
                continue
            for key, value in own:
                if id(value) in replacements and callable(value):
                    self.replace(module, key, replacements[id(value)])
        # This class removes a NamedTemporaryFile, even when modules are unloaded.
        for function in vars(tempfile._TemporaryFileCloser).values():  # type: ignore[attr-defined]
            if defaults := getattr(function, "__defaults__", None):
                self.replace(function, "__defaults__", tuple(replacements.get(id(each), each) for each in defaults))
        # NumPy's text readers open files with these functions.
        openers = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)
        if openers is not None:
            self.replace(openers, "_file_openers", {**openers._file_openers, None: self.open})


def layer(finder: Finder, hello: Mapping[str, Any], folder: str) -> Layer:
    """Returns the layer with which a process of the session opens the client's files. The caller must install it."""
    files = hello.get("files") or {}
    cache = os.path.join(folder, f"files-{os.getpid()}")
    os.makedirs(cache, exist_ok=True)
    remote = RemoteFiles(finder.link, Cache(cache, int(files.get("cache", _DEFAULT_CACHE))))
    return Layer(remote, finder.areas, files.get("cwd") or hello.get("cwd"))


def attach(session: "AcceptorSession") -> None:
    """Starts to serve the client's files to the program."""
    finder = session.loaded[Service.CODE]
    assert isinstance(finder, Finder)
    made = layer(finder, session.hello, str(session.folder))
    made.install()
    session.loaded[Service.FILES] = made
    session.stats["files"] = lambda: dict(made.remote.counters)
    session.peer.on_lost.append(lambda _reason: made.remove())
