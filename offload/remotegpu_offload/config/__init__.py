"""The rules in `remotegpu.yaml`: which parts of a program run elsewhere, and what may cross to there and back.

`model` is what the other parts read, with all defaults. `load` finds and reads the file, `reader` checks it against the
types of `model`, and `dump` writes a model back. `check` is the program behind `remotegpu offload check`. Used by each
part that follows rules. PyYAML must not be needed where there is no file.
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
