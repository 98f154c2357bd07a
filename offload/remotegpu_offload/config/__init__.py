"""The rules in `remotegpu.yaml`: which parts of a program run in the acceptor, and which data may cross.

`model` holds the rules that other packages read, with all defaults. `load` finds and reads the file, `reader` checks it
against the types of `model`, and `dump` writes a model as text. `check` is the program behind `remotegpu offload
check`. Without a file, PyYAML must not be needed.
"""

from remotegpu_offload.config.dump import dump
from remotegpu_offload.config.errors import ConfigError, Problem
from remotegpu_offload.config.load import find, load, parse
from remotegpu_offload.config.model import (
    ArgumentMode,
    Backend,
    ClassRule,
    CodeRules,
    Config,
    EnvRules,
    FileRules,
    FunctionRule,
    ModuleRule,
    Rule,
    SessionRules,
    TorchRule,
)

__all__ = [
    "ArgumentMode",
    "Backend",
    "ClassRule",
    "CodeRules",
    "Config",
    "ConfigError",
    "EnvRules",
    "FileRules",
    "FunctionRule",
    "ModuleRule",
    "Problem",
    "Rule",
    "SessionRules",
    "TorchRule",
    "dump",
    "find",
    "load",
    "parse",
]
