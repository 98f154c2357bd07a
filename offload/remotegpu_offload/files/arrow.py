"""An Arrow file system for the client's files, implemented with Python's file functions."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

from pyarrow import PythonFile
from pyarrow.fs import FileInfo, FileSystemHandler, FileType


class ClientFiles(FileSystemHandler):  # type: ignore[misc]
    """Accesses the client's files for Arrow, by absolute paths, with the functions that the layer has replaced."""

    def get_type_name(self) -> str:
        return "remotegpu"

    def normalize_path(self, path: str) -> str:
        return os.path.normpath(path)

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [_info(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[FileInfo]:
        if selector.allow_not_found and not os.path.exists(selector.base_dir):
            return []
        return list(_below(selector.base_dir, selector.recursive))

    def create_dir(self, path: str, recursive: bool) -> None:
        if recursive:
            os.makedirs(path, exist_ok=True)
        elif not os.path.isdir(path):
            os.mkdir(path)

    def delete_dir(self, path: str) -> None:
        shutil.rmtree(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        if missing_dir_ok and not os.path.exists(path):
            return
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.remove(entry.path)

    def delete_root_dir_contents(self) -> None:
        raise PermissionError("everything that the client has is not deleted")

    def delete_file(self, path: str) -> None:
        os.remove(path)

    def move(self, src: str, dest: str) -> None:
        os.replace(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        shutil.copyfile(src, dest)

    def open_input_stream(self, path: str) -> PythonFile:
        return PythonFile(open(path, "rb"), mode="r")

    def open_input_file(self, path: str) -> PythonFile:
        return PythonFile(open(path, "rb"), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> PythonFile:
        return PythonFile(open(path, "wb"), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> PythonFile:
        return PythonFile(open(path, "ab"), mode="w")


def _info(path: str) -> FileInfo:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return FileInfo(path, FileType.NotFound)
    if os.path.isdir(path):
        return FileInfo(path, FileType.Directory, mtime=status.st_mtime)
    return FileInfo(path, FileType.File, size=status.st_size, mtime=status.st_mtime)


def _below(folder: str, recursive: bool) -> Iterator[FileInfo]:
    for entry in list(os.scandir(folder)):
        yield _info(entry.path)
        if recursive and entry.is_dir():
            yield from _below(entry.path, recursive)
