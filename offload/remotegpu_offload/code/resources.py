"""Package data for `importlib.resources`, read from the code server. Works without the file layer."""

import io
import json
from collections.abc import Iterator
from importlib.resources.abc import Traversable, TraversableResources
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remotegpu_offload.code.finder import Finder


class PagedResources(TraversableResources):
    def __init__(self, finder: "Finder", folder: str) -> None:
        self._root = PagedPath(finder, folder, is_folder=True)

    def files(self) -> "PagedPath":
        return self._root


class PagedPath(Traversable):
    """A file or folder of a package on the client."""

    def __init__(self, finder: "Finder", path: str, *, is_folder: bool | None = None) -> None:
        self._finder = finder
        self._path = path
        self._is_folder = is_folder

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    def iterdir(self) -> Iterator["PagedPath"]:
        for name, is_folder in self._finder.entries(self._path):
            yield PagedPath(self._finder, f"{self._path}/{name}", is_folder=is_folder)

    def is_dir(self) -> bool:
        return self._kind() is True

    def is_file(self) -> bool:
        return self._kind() is False

    def _kind(self) -> bool | None:
        if self._is_folder is None:
            parent, _, name = self._path.rpartition("/")
            try:
                self._is_folder = dict(self._finder.entries(parent)).get(name)
            except OSError:
                return None
        return self._is_folder

    def joinpath(self, *descendants: Any) -> "PagedPath":
        parts = [part for text in descendants for part in str(text).split("/") if part not in ("", ".")]
        return PagedPath(self._finder, "/".join([self._path, *parts])) if parts else self

    def __truediv__(self, child: Any) -> "PagedPath":
        return self.joinpath(child)

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
        if mode not in ("r", "rb"):
            raise ValueError(f"package data is read only: mode {mode!r}")
        content = io.BytesIO(self.read_bytes())
        return content if mode == "rb" else io.TextIOWrapper(content, *args, **kwargs)

    def read_bytes(self) -> bytes:
        return self._finder.data(self._path)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def __str__(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"PagedPath({self._path!r})"


def entries_from(content: bytes) -> list[tuple[str, bool]]:
    return [(str(name), bool(is_folder)) for name, is_folder in json.loads(content)]
