"""Leaves a plain `remotegpu run`, on one appliance and without options for Python alone, to `remotegpu-run`.

That program needs none of the packages whose import takes longer than all the rest of a start.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Final

from remotegpu.api.names import APPLIANCE_ENV, CHECK_ENV
from remotegpu.paths import find_dist

_PROGRAM: Final = "remotegpu-run"
_APPLIANCE: Final = {"-a", "--appliance"}
_COUNT: Final = {"-n", "--count"}
_SIZE: Final = {"-p", "--fraction", "-m", "--memory", "--compute", "--compute-limit", "--managed-memory"}
_ACCESS: Final = {"--token", "--token-file", "--ca", "--server-name"}
_VALUED: Final = _APPLIANCE | _COUNT | _SIZE | _ACCESS
_SWITCHES: Final = {"--wait", "--no-wait"}
OPTIONS: Final = _VALUED | _SWITCHES


def start(words: Sequence[str]) -> None:
    """Executes `remotegpu-run` if the command line is a plain run; else returns."""
    if not is_plain(words, os.environ):
        return
    program = find_dist().bin / _PROGRAM
    try:
        os.execv(program, [str(program), *words[1:]])  # noqa: S606 (there is no shell)
    except OSError:
        return  # It is not built, or not for this machine.


def is_plain(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether `remotegpu-run` can do it all. If a word is not understood here, Python reports the error."""
    # A check is refused with a reason, which Python prints.
    if not words or words[0] != "run" or environment.get(CHECK_ENV):
        return False
    rest, appliance = list(words[1:]), environment.get(APPLIANCE_ENV, "")
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word in _SWITCHES:
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name not in _VALUED or not (equals or rest):
            return False
        value = value if equals else rest.pop(0)
        if name in _COUNT and not _is_count(value):
            return False
        if name in _APPLIANCE:
            appliance = value
    # Without an appliance, Python starts one. Of several, it chooses.
    return bool(rest) and len([part for part in appliance.split(",") if part.strip()]) == 1


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= 1024
