"""Mutates JSON and bytes at random, from seeds, to fuzz parts that get input from strangers or tenants."""

from __future__ import annotations

import copy
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = "REMOTEGPU_FUZZ_SECONDS"
#: Values that parsers often do not expect.
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1 << 31, 1 << 63, -(1 << 63), 10**40, 1.5, -0.0, 1e308),
    *("", "0", "-1", "x" * 300, "\x1b[2J", "\n", "\u202e", "\ud800", "../../etc/passwd", "1e9999", "100000000000Ei"),
    *([], {}, [[]], [None], {"": None}, [{}] * 50),
)


def for_a_while(name: str, least: int = 100) -> Iterator[random.Random]:
    """Yields random generators for the time that the shard sets. The generator's seed is `name` and a number."""
    seconds = float(os.environ.get(SECONDS, "60"))
    ends, turn = time.monotonic() + seconds, 0
    while time.monotonic() < ends or turn < least:
        yield random.Random(f"{name} {turn}")
        turn += 1


def seeds(file: Path) -> list[Any]:
    found: list[Any] = json.loads(file.read_text())
    return found


def changed(value: Any, chance: random.Random) -> Any:
    """Returns a copy with one to four changes."""
    made = copy.deepcopy(value)
    for _ in range(chance.randint(1, 4)):
        made = _change(made, chance)
    return made


def with_other_texts(value: Any, chance: random.Random) -> Any:
    """Returns a copy with other texts but the same types, as an API server would store it.

    In a text with lines of JSON, one line is replaced by a mutation of its JSON.
    """
    if isinstance(value, dict):
        return {key: with_other_texts(each, chance) for key, each in value.items()}
    if isinstance(value, list):
        return [with_other_texts(each, chance) for each in value]
    if not isinstance(value, str) or chance.random() < 0.6:
        return value
    if value[:1] in ("{", "["):
        lines = value.splitlines()
        at = chance.randrange(len(lines))
        lines[at] = json.dumps(changed(json.loads(lines[at]), chance))
        return "\n".join(lines)
    return chance.choice([value * 2, value[1:], *(each for each in _ODD if isinstance(each, str))])


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(made) + 1)
        match chance.randrange(4):
            case 0:
                made[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del made[at : at + chance.randint(1, 20)]
            case 2:
                made[at:at] = chance.randbytes(chance.randint(1, 8))
            case _:
                made[at:at] = made[at : at + chance.randint(1, 200)] * chance.randint(1, 20)
    return bytes(made)


def _change(value: Any, chance: random.Random) -> Any:
    """Returns the value with one random change, inside it or of the whole."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        match chance.randrange(8):
            case 0:
                return {name: each for name, each in value.items() if name != key}
            case 1:
                return value | {chance.choice(["", key + "s", "x" * 100]): value[key]}
            case _:
                return value | {key: _change(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        if chance.randrange(6) == 0:
            return value + [value[at]] * chance.randint(1, 30)
        return [*value[:at], _change(value[at], chance), *value[at + 1 :]]
    return copy.deepcopy(chance.choice(_ODD))
