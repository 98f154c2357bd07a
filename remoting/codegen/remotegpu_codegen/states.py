"""The answer to a program that asks for a function by name: provided or refused."""

import re
from typing import Final

from remotegpu_codegen.registry import Class, Registry

PROVIDED: Final = "provided"
REFUSED: Final = "refused"


def states(registry: Registry) -> dict[str, str]:
    """Every name that a program can ask for. A base name is its newest function, as cuGetProcAddress answers."""
    found = {function.symbol: _state(function.handling) for function in registry.nvml}
    for function in sorted(registry.driver, key=lambda function: function.since):
        names = {re.sub(r"_v\d+$", "", function.symbol), *function.symbols}
        found |= dict.fromkeys(names, _state(function.handling))
    return found


def _state(handling: Class) -> str:
    return REFUSED if handling is Class.REFUSED else PROVIDED
