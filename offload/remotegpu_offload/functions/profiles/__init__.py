"""Module mode: the functions and classes of a library that are worth running in the acceptor, one file per library.

A profile is a list of function-mode rules, tested with its library. The keys of a file are `classes` and `functions`:
lists of qualified names.
"""

import functools
import tomllib
from importlib import resources
from typing import Any, Final

from remotegpu_offload.config.errors import ConfigError, Problem
from remotegpu_offload.config.model import ClassRule, Config, FunctionRule, ModuleRule

# Profiles that were removed after the previous release, and their replacements.
_REMOVED: Final = {
    "onnxruntime": "write a `function` rule for the function of the program that opens the session and runs it, as in "
    "docs/offload.md",
}


def names() -> list[str]:
    """Returns the names of all profiles."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def name_of(rule: ModuleRule) -> str:
    return rule.module if rule.profile == "auto" else rule.profile


@functools.cache
def _profile(name: str) -> dict[str, Any]:
    read: dict[str, Any] = tomllib.loads((resources.files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))
    return read


def missing(rule: ModuleRule) -> str:
    """Returns the reason why a rule has no profile, and a remedy; "" if it has one."""
    if name_of(rule) in names():
        return ""
    if instead := _REMOVED.get(name_of(rule)):
        return f"the stub profile {name_of(rule)!r} was removed: {instead}"
    return (
        f"there is no stub profile {name_of(rule)!r}; there are {', '.join(names())}: write rules for the functions "
        "and classes that matter instead"
    )


def expand(rule: ModuleRule) -> list[FunctionRule | ClassRule]:
    """Returns the rules of a profile. Raises ConfigError if the profile does not exist."""
    message = missing(rule)
    if message:
        raise ConfigError("remotegpu.yaml", [Problem(rule.line, f"module {rule.module}", message)])
    profile = _profile(name_of(rule))
    functions = [FunctionRule(name, line=rule.line) for name in profile.get("functions", ())]
    return [*functions, *(ClassRule(name, line=rule.line) for name in profile.get("classes", ()))]


def packages(config: Config) -> set[str]:
    """Returns the packages that the rules name. Results may be instances of their classes."""
    found = set()
    for rule in config.rules:
        if isinstance(rule, FunctionRule | ClassRule):
            found.add(rule.pattern.partition(".")[0])
        elif isinstance(rule, ModuleRule):
            found.update(each.pattern.partition(".")[0] for each in expand(rule))
    return found


def rules(config: Config) -> list[FunctionRule | ClassRule]:
    """Returns all rules for functions and classes in their order; a module rule is replaced by those of its profile."""
    found: list[FunctionRule | ClassRule] = []
    for rule in config.rules:
        if isinstance(rule, ModuleRule):
            found += expand(rule)
        elif isinstance(rule, FunctionRule | ClassRule):
            found.append(rule)
    return found
