"""Calls a function after a module is imported, without importing the module."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Matches = Callable[[str], bool]
Told = Callable[[ModuleType], None]


class Watcher(MetaPathFinder):
    """A finder that leaves the search to the other finders, and calls `told` after a module that `matches` was
    executed."""

    # Marks this finder for `code.sources`, which searches for modules without it.
    remotegpu_watches = True

    def __init__(self, matches: Matches, told: Told, maybe: Matches) -> None:
        self.matches = matches
        self.told = told
        self.maybe = maybe

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not self.maybe(name):
            return None
        spec = self._found_by_others(name, path, target)
        if spec is None or spec.loader is None or not self.matches(name):
            return spec
        if hasattr(spec.loader, "exec_module"):
            spec.loader = _Watched(spec.loader, self.told)
        return spec

    def _found_by_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        # The finders before this one have found nothing.
        ours = sys.meta_path.index(self) if self in sys.meta_path else -1
        for finder in sys.meta_path[ours + 1 :]:
            find: Any = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None


class _Watched(Loader):
    """Wraps the real loader until the module is executed."""

    def __init__(self, real: Any, told: Told) -> None:
        self._real = real
        self._notify = told

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create: Any = getattr(self._real, "create_module", None)
        module: ModuleType | None = None if create is None else create(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # During the execution and afterwards, all code sees the real loader.
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._notify(sys.modules.get(module.__name__, module))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def when_imported(matches: Matches | str, told: Told, *, maybe: Matches | None = None, already: bool = True) -> Watcher:
    """Calls `told` with each imported module that matches (a predicate, or one name).

    With `already`, modules that are imported before count too, at once. With `maybe`, `matches` is called only for
    names for which `maybe` is true, and only if the module exists. The import raises the exceptions of both.
    """
    wanted = matches.__eq__ if isinstance(matches, str) else matches
    watcher = Watcher(lambda name: wanted(name) is True, told, maybe or (lambda name: wanted(name) is True))
    sys.meta_path.insert(0, watcher)
    for name, module in list(sys.modules.items()) if already else ():
        if isinstance(module, ModuleType) and name != "__main__" and watcher.maybe(name) and watcher.matches(name):
            told(module)
    return watcher
