"""Executes the program `remotegpu-run` for a run that needs no Python, before any other import.

The imports would take longer than the rest of the start.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Final

from remotegpu.api.names import APPLIANCE_ENV, NULL_RULES_ENV
from remotegpu.paths import find_dist

PROGRAM: Final = "remotegpu-run"
_APPLIANCE: Final = {"-a", "--appliance"}
_COUNT: Final = {"-n", "--count"}
_SIZE: Final = {"-p", "--fraction", "-m", "--memory", "--compute", "--compute-limit", "--managed-memory"}
_ACCESS: Final = {"--token", "--token-file", "--ca", "--server-name"}
_VALUED: Final = _APPLIANCE | _COUNT | _SIZE | _ACCESS | {"--profile"}
_SWITCHES: Final = {"--wait", "--no-wait", "--native"}
OPTIONS: Final = _VALUED | _SWITCHES


def start(words: Sequence[str]) -> None:
    """Executes `remotegpu-run` if the command line is a plain run. Otherwise returns."""
    if not is_plain(words, os.environ):
        return
    program = find_dist().bin / PROGRAM
    try:
        os.execv(program, [str(program), *words[1:]])  # noqa: S606 (there is no shell)
    except OSError:
        return  # The program is missing, or not for this machine. The Python code then reports it.


def is_plain(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether `remotegpu-run` can do this run without Python. With an unknown option Python runs, and reports it."""
    if not words or words[0] != "run":
        return False
    rest, appliance, native = list(words[1:]), environment.get(APPLIANCE_ENV, ""), False
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word in _SWITCHES:
            native = native or word == "--native"
            continue
        name, attached, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if name not in _VALUED or not (attached or rest):
            return False
        value = value if attached else rest.pop(0)
        if name in _COUNT and not _is_count(value):
            return False
        if name in _APPLIANCE:
            appliance = value
    if native:
        # Python is needed to check the use of a null GPU's rules at the end.
        return bool(rest) and not environment.get(NULL_RULES_ENV)
    # Python is needed to start an appliance if none is named.
    return bool(rest) and any(part.strip() for part in appliance.split(","))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= 1024
