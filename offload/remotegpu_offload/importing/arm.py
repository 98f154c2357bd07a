"""Arms a process: wraps functions and classes that the configuration names when their module is imported."""

import ast
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from remotegpu_offload import OURS
from remotegpu_offload.importing.hooks import Watcher, when_imported

if TYPE_CHECKING:
    from remotegpu_offload.config.model import Config

_WILD: Final = frozenset("*?[")
# Modules that Python itself imports at its start, and those that reading the configuration imports.
_NO_CONCERN: Final = frozenset(("sitecustomize", "usercustomize", "cloudpickle", "yaml", "_yaml", *OURS))
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# The function that the main module calls to wrap one of its own functions or classes.
_WRAP: Final = "__remotegpu_wrap__"
# The variable that passes this program's configuration to processes that it starts.
CHILD_ENV: Final = "REMOTEGPU_OFFLOAD_CHILD"
# The folder from which Python imports `sitecustomize` at its start.
_START: Final = str(Path(__file__).resolve().parents[1] / "sitecustomize")


class _Armed:
    """The watcher that `sitecustomize` installed, before the program arms the process itself."""

    watcher: Watcher | None = None


def arm(find_config: "Callable[[], Config]", *, torch_only: bool = False, already: bool = True) -> Watcher:
    """Arms this process.

    The configuration is read at the first import of a module outside of the standard library. With `already`, modules
    that are imported before count too. If `find_config` raises ConfigError, that import raises the error.
    """
    if _Armed.watcher in sys.meta_path:
        sys.meta_path.remove(_Armed.watcher)
    config = cache(find_config)

    def may_concern(name: str) -> bool:
        top = name.partition(".")[0]
        return top not in sys.stdlib_module_names and top not in _NO_CONCERN

    def concerns(name: str) -> bool:
        if name == "torch":
            return config().torch is not None
        return not torch_only and names_in(config(), name)

    def told(module: ModuleType) -> None:
        if module.__name__ == "torch":
            _arm_torch(config())
        if not torch_only and names_in(config(), module.__name__):
            from remotegpu_offload.functions import client  # noqa: PLC0415 (only needed by function rules)
            from remotegpu_offload.importing import unmatched  # noqa: PLC0415

            client.install(module, config())
            unmatched.warn_of_module(config(), module)

    return when_imported(concerns, told, maybe=may_concern, already=already)


def arm_from_environment() -> None:
    """Arms this process for `sitecustomize`.

    The configuration comes from the program that started this process (`arm_children`); otherwise it is searched for.
    """
    said = json.loads(os.environ.get(CHILD_ENV, "{}"))

    def find() -> "Config":
        from remotegpu_offload.config.load import load  # noqa: PLC0415 (imports a YAML reader)

        config = load(said.get("config"))
        if not said:
            return config
        from remotegpu_offload.client import session  # noqa: PLC0415 (only needed in child processes)

        if said["backends"]:
            config = replace(config, session=replace(config.session, backends=tuple(said["backends"])))
        session.configure(config)
        return config

    # Modules that are imported already belong to Python's own start.
    _Armed.watcher = arm(find, torch_only=bool(said.get("torch_only")), already=False)


def arm_children(config: "Config", *, torch_only: bool) -> None:
    """Arms each Python process that this program starts, by multiprocessing's spawn and forkserver or as a command.

    Each of them opens a session of its own, on the same shares, when it needs one.
    """
    said = {
        "config": None if config.source is None else str(config.source),
        "backends": config.session.backends,
        "torch_only": torch_only,
    }
    os.environ[CHILD_ENV] = json.dumps(said)
    before = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([_START, *before]))


def names_in(config: "Config", module: str) -> bool:
    """Returns whether a rule for functions or classes may match a name in this module."""
    from remotegpu_offload.functions import profiles  # noqa: PLC0415 (only needed by function rules)

    return any(_may_mean(rule.pattern, module) for rule in profiles.rules(config))


def main_code(source: bytes | str, file: str, config: "Config") -> Any:
    """Compiles the main module, with a decorator for each function and class that a rule names as `__main__.name`.

    Line numbers do not change. Raises SyntaxError.
    """
    rules = [rule for rule in (*config.functions, *config.classes) if _may_mean(rule.pattern, "__main__")]
    if not rules:
        return compile(source, file, "exec", dont_inherit=True)
    tree = ast.parse(source, file)
    defined = {node.name: node for node in tree.body if isinstance(node, _DEFINITIONS)}
    for node in tree.body:
        if isinstance(node, _DEFINITIONS) and any(rule.matches(f"__main__.{node.name}") for rule in rules):
            node.decorator_list.insert(0, ast.copy_location(ast.Name(_WRAP, ast.Load()), node))
    from remotegpu_offload.importing import unmatched  # noqa: PLC0415 (only needed by function rules)

    unmatched.warn_of_main(config, defined)
    return compile(tree, file, "exec", dont_inherit=True)


def main_names(config: "Config") -> dict[str, Any]:
    """Returns the names that code from `main_code` needs in the main module."""

    def wrap(value: Any) -> Any:
        from remotegpu_offload.functions import client  # noqa: PLC0415 (only needed by function rules)

        return client.decorated(value, f"__main__.{value.__name__}", config)

    return {_WRAP: wrap}


def _may_mean(pattern: str, module: str) -> bool:
    wild = next((at for at, letter in enumerate(pattern) if letter in _WILD), None)
    if wild is None:
        return pattern.startswith(module + ".")
    base = pattern[:wild].rpartition(".")[0]
    return not base or module == base or module.startswith(base + ".")


def _arm_torch(config: "Config") -> None:
    from remotegpu_offload.torch.script import names  # noqa: PLC0415 (imports torch)

    assert config.torch is not None
    names.arm(config.torch.devices)
