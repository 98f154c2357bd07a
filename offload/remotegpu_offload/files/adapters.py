"""Adapts libraries that take a path in Python and open it in C: passes an open file, or a copy that is written back."""

import atexit
import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from remotegpu_offload.code.naming import own_place
from remotegpu_offload.files.paged import PagedFile
from remotegpu_offload.importing.hooks import when_imported

if TYPE_CHECKING:
    from remotegpu_offload.files.layer import Layer

# The modes of `h5py.File`.
_HDF5_FLAGS: Final = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "w-": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "x": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "a": os.O_RDWR | os.O_CREAT,
}


def install(layer: "Layer") -> None:
    """Adapts libraries that are already imported, and others when the program imports them."""
    _adapt_imports(layer)
    when_imported("torch", lambda torch: _adapt_torch(torch, layer))
    when_imported("sqlite3", lambda sqlite3: _adapt_sqlite(sqlite3, layer))
    when_imported("h5py", lambda h5py: _adapt_h5py(h5py, layer))
    when_imported("pyarrow", lambda pyarrow: _adapt_arrow_files(pyarrow, layer))
    when_imported("pyarrow.fs", lambda fs: _adapt_arrow(fs, layer))


def _adapt_imports(layer: "Layer") -> None:
    """Covers modules that the program loads from a file by path, such as plug-ins and configurations in Python."""
    files: Any = importlib.machinery.SourceFileLoader.__mro__[1]
    read, locate = files.get_data, importlib.util.spec_from_file_location

    @functools.wraps(read)
    def get_data(self: Any, path: str) -> bytes:
        if own_place(path) or layer.theirs(path) is None:
            return bytes(read(self, path))
        with layer.open(path, "rb") as file:
            return bytes(file.read())

    @functools.wraps(locate)
    def spec_from_file_location(name: str, location: Any = None, **keywords: Any) -> Any:
        # The original would resolve the path against the acceptor's current folder.
        return locate(name, layer.theirs(location) or location, **keywords)

    layer.replace(files, "get_data", get_data)
    layer.replace(importlib.util, "spec_from_file_location", spec_from_file_location)


def _adapt_torch(torch: ModuleType, layer: "Layer") -> None:
    original: Any = torch.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *arguments: Any, **keywords: Any) -> Any:
        if layer.theirs(f) is None:
            return original(obj, f, *arguments, **keywords)
        with layer.open(f, "wb") as file:
            return original(obj, file, *arguments, **keywords)

    torch.save = save  # type: ignore[attr-defined]
    serialization: Any = getattr(torch, "serialization", None)
    if serialization is not None:
        serialization.save = save


def _adapt_sqlite(sqlite3: Any, layer: "Layer") -> None:
    from remotegpu_offload.files.databases import Databases  # noqa: PLC0415 (only programs that use sqlite3 need it)

    sqlite3.connect = sqlite3.dbapi2.connect = Databases(layer).connect


class _Hdf5File(PagedFile):
    """A file for HDF5. Written data stays in a copy in the acceptor until HDF5 flushes the file."""

    def __init__(self, layer: "Layer", path: str, flags: int, shown: str) -> None:
        super().__init__(layer.remote, path, flags)
        self._shown = shown
        if self.writable():
            self.fileno()

    def __repr__(self) -> str:
        # h5py uses this text as the file's name.
        return self._shown

    def flush(self) -> None:
        super().flush()
        if not self.closed and self._written is not None:
            self._written.write_back()


def _adapt_h5py(h5py: Any, layer: "Layer") -> None:
    kind = h5py.File
    begin, end = kind.__init__, kind.close
    # By `id`, because closed files have no hash.
    ours: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    @functools.wraps(begin)
    def opened(self: Any, name: Any, mode: str = "r", driver: Any = None, *arguments: Any, **keywords: Any) -> None:
        path = layer.theirs(name) if driver is None and mode in _HDF5_FLAGS else None
        if path is None:
            begin(self, name, mode, driver, *arguments, **keywords)
            return
        file = _Hdf5File(layer, path, _HDF5_FLAGS[mode], os.fsdecode(name))
        if mode == "a" and file.seek(0, os.SEEK_END):
            mode = "r+"
        try:
            begin(self, file, mode if mode in ("r", "r+") else "w", None, *arguments, **keywords)
        except BaseException:
            with contextlib.suppress(OSError):
                file.close()
            raise
        self.remotegpu_file = file
        ours[id(self)] = self

    @functools.wraps(end)
    def closed(self: Any) -> None:
        end(self)
        if id(self) in ours:
            del ours[id(self)]
            self.remotegpu_file.close()

    def close_all() -> None:
        for file in list(ours.values()):
            file.close()

    kind.__init__, kind.close = opened, closed
    # HDF5 also closes its files when a process ends.
    atexit.register(close_all)


def _adapt_arrow(fs: Any, layer: "Layer") -> None:
    """Covers Parquet, ORC and datasets: Arrow calls this function to find the file system of a path."""
    original = fs._resolve_filesystem_and_path

    @functools.wraps(original)
    def resolve(path: Any, filesystem: Any = None, **options: Any) -> Any:
        theirs = layer.theirs(path) if filesystem is None else None
        if theirs is None or (isinstance(path, str) and "://" in path):
            return original(path, filesystem, **options)
        from remotegpu_offload.files.arrow import ClientFiles  # noqa: PLC0415 (imports pyarrow)

        return fs.PyFileSystem(ClientFiles()), os.path.normpath(theirs)

    fs._resolve_filesystem_and_path = resolve


def _adapt_arrow_files(pyarrow: Any, layer: "Layer") -> None:
    """Covers `pyarrow.OSFile`, with which pandas writes Parquet."""
    original = pyarrow.OSFile

    def made(_kind: Any, path: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        if layer.theirs(path) is None:
            return original(path, mode, *arguments, **keywords)
        return pyarrow.PythonFile(layer.open(path, mode.replace("b", "") + "b"), mode=mode[0])

    pyarrow.OSFile = type("OSFile", (original,), {"__new__": made, "__module__": original.__module__})
