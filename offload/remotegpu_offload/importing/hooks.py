"""Callbacks after the import of a module, without importing anything for it."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Matches = Callable[[str], bool]
Told = Callable[[ModuleType], None]


class Watcher(MetaPathFinder):
    """Lets the others find, and calls `told` when a module that `matches` has been executed."""

    # So that a search for a module's place does not ask this finder.
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
        # Those before us have been asked, and found nothing.
        ours = sys.meta_path.index(self) if self in sys.meta_path else -1
        for finder in sys.meta_path[ours + 1 :]:
            find: Any = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None


class _Watched(Loader):
    """Stands before the real loader until it has done its work."""

    def __init__(self, real: Any, told: Told) -> None:
        self._real = real
        self._notify = told

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create: Any = getattr(self._real, "create_module", None)
        module: ModuleType | None = None if create is None else create(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # While the module runs, and afterwards, all code sees the loader that it really has.
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._notify(sys.modules.get(module.__name__, module))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def when_imported(matches: Matches | str, told: Told, *, maybe: Matches | None = None, already: bool = True) -> Watcher:
    """Calls `told` with each module that matches (a predicate, or one name), now if it was imported `already`.

    Where `maybe` is given, `matches` is called only for names for which that is true, and only if there is such a
    module. An exception of either is raised by the import.
    """
    wanted = matches.__eq__ if isinstance(matches, str) else matches
    watcher = Watcher(lambda name: wanted(name) is True, told, maybe or (lambda name: wanted(name) is True))
    sys.meta_path.insert(0, watcher)
    for name, module in list(sys.modules.items()) if already else ():
        if isinstance(module, ModuleType) and name != "__main__" and watcher.maybe(name) and watcher.matches(name):
            told(module)
    return watcher
