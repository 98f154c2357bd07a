"""Decides in the acceptor whether a path belongs to the client or to the acceptor."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from remotegpu_offload.code.naming import OWN_FOLDERS
from remotegpu_offload.files.rules import below

_SYSTEM: Final = ("/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/proc", "/run", "/sbin", "/sys", "/usr")


@dataclass(frozen=True, slots=True)
class Areas:
    """Folders of the client and of the acceptor. The innermost folder around a path decides its owner."""

    client: Sequence[str]
    own: Sequence[str]
    _cache: dict[str, bool] = field(default_factory=dict, compare=False)

    def is_clients(self, path: str) -> bool:
        """Returns whether the path belongs to the client. `path` must be absolute and normalised."""
        folder = path.rpartition("/")[0]
        answer = self._cache.get(folder)
        if answer is None or path in self.client or path in self.own:
            answer = _longest(path, self.client) > _longest(path, self.own)
            if path not in self.client and path not in self.own and len(self._cache) < 100_000:
                self._cache[folder] = answer
        return answer


def _longest(path: str, folders: Iterable[str]) -> int:
    return max((len(folder) for folder in folders if below(path, folder) is not None), default=-1)


def areas_of(hello: Mapping[str, Any], own: Iterable[str]) -> Areas:
    """Makes the areas from the greeting.

    The client's folders are those of its rules, packages, current folder and main module.
    """
    files, code = hello.get("files") or {}, hello.get("code") or {}
    theirs = [*files.get("areas", ()), *code.get("folders", ())]
    if code.get("main"):
        theirs.append(os.path.dirname(code["main"]))
    return Areas([path.rstrip("/") or "/" for path in dict.fromkeys(theirs)], [path.rstrip("/") for path in own])


def own_folders(folder: str) -> list[str]:
    """Returns the acceptor's own folders: of the system, of the interpreter with its search path, and of the
    session."""
    mine = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__), folder, *_SYSTEM}
    mine |= {*OWN_FOLDERS, *map(os.path.dirname, OWN_FOLDERS), *sys.path}
    return sorted(path for path in mine if path.startswith("/") and path != "/")
