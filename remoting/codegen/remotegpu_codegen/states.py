"""The result for a program that looks up a function by name: provided or refused."""

import re
from typing import Final

from remotegpu_codegen.registry import Class, Registry

PROVIDED: Final = "provided"
REFUSED: Final = "refused"


def states(registry: Registry) -> dict[str, str]:
    """Returns the state of every name that a program can look up. A base name has its newest function's, as in
    cuGetProcAddress.
    """
    found = {function.symbol: _state(function.handling) for function in registry.nvml}
    for function in sorted(registry.driver, key=lambda function: function.since):
        names = {re.sub(r"_v\d+$", "", function.symbol), *function.symbols}
        found |= dict.fromkeys(names, _state(function.handling))
    return found


def _state(handling: Class) -> str:
    return REFUSED if handling is Class.REFUSED else PROVIDED
