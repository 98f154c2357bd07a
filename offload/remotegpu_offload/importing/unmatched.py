"""Warnings about rules that match nothing. Without them the program would silently run here."""

import sys
from collections.abc import Iterable
from types import ModuleType

from remotegpu_offload.config.model import ClassRule, Config, FunctionRule
from remotegpu_offload.config.suggest import suggestion


def warn_of_module(config: Config, module: ModuleType) -> None:
    """Rules for a name that this module, just imported, does not have, or has as something else."""
    members = vars(module)
    # A package may get the name as a module below it; others make their names when they are asked.
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
    """The same of the script, whose names are known before it runs."""
    names = list(defined)
    for rule, name in _plain(config, "__main__"):
        if name not in names:
            _warn(config, rule, f"the script has no {name!r}; {suggestion(name, names)}")


def _plain(config: Config, home: str) -> Iterable[tuple[FunctionRule | ClassRule, str]]:
    """The rules that name one thing in this module."""
    rules: tuple[FunctionRule | ClassRule, ...] = (*config.functions, *config.classes)
    for rule in rules:
        module, _, name = rule.pattern.rpartition(".")
        if module == home and not set(name) & set("*?["):
            yield rule, name


def _warn(config: Config, rule: FunctionRule | ClassRule, problem: str) -> None:
    kind = "class" if isinstance(rule, ClassRule) else "function"
    where = f"{config.source or 'remotegpu.yaml'}:{rule.line}"
    sys.stderr.write(f"remotegpu: {where}: {kind} {rule.pattern} does nothing: {problem}\n")
