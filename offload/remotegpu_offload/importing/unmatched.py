"""Warns of rules that match nothing. Without a warning the program would silently run here."""

import sys
from collections.abc import Iterable
from types import ModuleType

from remotegpu_offload.config.model import ClassRule, Config, FunctionRule
from remotegpu_offload.config.suggest import suggestion


def warn_of_module(config: Config, module: ModuleType) -> None:
    """Warns of rules for names that a newly imported module lacks, or that are of another kind."""
    members = vars(module)
    # A package may get the name later as a submodule; a module with `__getattr__` creates names on demand.
    if "__path__" in members or "__getattr__" in members:
        return
    for rule, name in _plain(config, module.__name__):
        if name not in members:
            known = [own for own in members if not own.startswith("_")]
            _warn(config, rule, f"{module.__name__} has no {name!r}; {suggestion(name, known)}")
        elif isinstance(rule, ClassRule) != isinstance(members[name], type):
            right = "function" if isinstance(rule, ClassRule) else "class"
            _warn(config, rule, f"it is a {right}: write `{right}: {rule.pattern}`")


def warn_of_main(config: Config, defined: Iterable[str]) -> None:
    """Warns of rules for names that the script lacks. Call it before the script runs."""
    names = list(defined)
    for rule, name in _plain(config, "__main__"):
        if name not in names:
            _warn(config, rule, f"the script has no {name!r}; {suggestion(name, names)}")


def _plain(config: Config, home: str) -> Iterable[tuple[FunctionRule | ClassRule, str]]:
    """Yields the rules without wildcards for this module, with the name that each contains."""
    rules: tuple[FunctionRule | ClassRule, ...] = (*config.functions, *config.classes)
    for rule in rules:
        module, _, name = rule.pattern.rpartition(".")
        if module == home and not set(name) & set("*?["):
            yield rule, name


def _warn(config: Config, rule: FunctionRule | ClassRule, problem: str) -> None:
    kind = "class" if isinstance(rule, ClassRule) else "function"
    where = f"{config.source or 'remotegpu.yaml'}:{rule.line}"
    sys.stderr.write(f"remotegpu: {where}: {kind} {rule.pattern} does nothing: {problem}\n")
