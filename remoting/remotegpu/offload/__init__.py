"""The old name of `remotegpu_offload`, for one release: kernelspecs, environments and pickles name it.

Each module of it is the very same object under both names.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Final

import remotegpu_offload

_NEW: Final = "remotegpu_offload"
# A module of another name now, which calls and pickles of an older client name.
_RENAMED: Final = {"remotegpu_offload.functions.inference.there": "remotegpu_offload.functions.inference.acceptor"}


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finder and loader of `remotegpu.offload.X`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        found = importlib.util.find_spec(_new(name))
        if found is None:
            return None
        package = found.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(name, self, origin=found.origin, is_package=package)

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what stands there afterwards.
        sys.modules[module.__name__] = importlib.import_module(_new(module.__name__))

    def get_code(self, name: str) -> CodeType | None:
        """For `python -m`."""
        found = importlib.util.find_spec(_new(name))
        assert found is not None
        assert isinstance(found.loader, importlib.abc.InspectLoader)
        return found.loader.get_code(found.name)

    def get_source(self, name: str) -> str | None:
        return None

    def is_package(self, name: str) -> bool:
        found = importlib.util.find_spec(_new(name))
        return found is not None and found.submodule_search_locations is not None


def _new(name: str) -> str:
    new = _NEW + name.removeprefix(__name__)
    return _RENAMED.get(new, new)


# First: the new package's folder is the path of the old name too, and a module found there would be a second one.
sys.meta_path.insert(0, _Alias())
sys.modules[__name__] = remotegpu_offload
warnings.warn(
    f"{__name__} is now {_NEW}, and the old name goes with the next release: import {_NEW}; write a notebook's kernel "
    "anew with `remotegpu offload jupyter install`",
    DeprecationWarning,
    stacklevel=2,
)
