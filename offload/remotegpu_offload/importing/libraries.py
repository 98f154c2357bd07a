"""A finder for cloudpickle and PyYAML, which the user's interpreter may lack.

Versions installed there take precedence.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

# A list of folders, like PYTHONPATH. Only these two packages are imported from them.
LIBRARIES_ENV: Final = "REMOTEGPU_OFFLOAD_LIBRARIES"
_LIBRARIES: Final = ("cloudpickle", "yaml")


class LibraryFinder(MetaPathFinder):
    """The last finder of `sys.meta_path`, which is asked only if no other finder has the module."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _LIBRARIES:
            return None
        for folder in self._folders:
            package = os.path.join(folder, name)
            file = os.path.join(package, "__init__.py")
            if os.path.isfile(file):
                return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[package])
        return None


def install_finder() -> None:
    """Installs the finder for the folders in LIBRARIES_ENV and the folder that contains this package."""
    ours = __file__.rpartition("/remotegpu_offload/")[0]
    given = [folder for folder in os.environ.get(LIBRARIES_ENV, "").split(os.pathsep) if folder]
    sys.meta_path.append(LibraryFinder([*given, ours]))


def library_folders() -> str:
    """Returns the value of LIBRARIES_ENV: the folders in which this interpreter has the packages."""
    found = [importlib.util.find_spec(name) for name in _LIBRARIES]
    folders = [os.path.dirname(os.path.dirname(spec.origin)) for spec in found if spec is not None and spec.origin]
    return os.pathsep.join(dict.fromkeys(folders))
