"""The parser of `--offload [NAME=]PYTHON[:BACKEND[,direct|,exclusive]]`. Pure except for the search for the program."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from remotegpu.appliance.settings import EnvironmentOption
from remotegpu_offload.acceptor.environment import BACKENDS

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_EXAMPLE: Final = "write [NAME=]PYTHON[:BACKEND], as --offload torch=/opt/torch/bin/python:cuda"
# The back ends that allow each of these words.
_WORDS: Final = {"direct": ("cuda",), "exclusive": ("rocm", "xpu")}


def parse(text: str) -> EnvironmentOption:
    """Parses one option. Raises ValueError with a sentence for the user."""
    name, equals, rest = text.rpartition("=")
    program, colon, backend = rest.rpartition(":")
    if not colon or not backend or "/" in backend:
        program, backend = rest, ""
    backend, *words = backend.split(",")
    if (backend or words) and backend not in BACKENDS:
        raise ValueError(f"{text!r}: {backend!r} is no back end; there are {', '.join(BACKENDS)}")
    strange = next((word for word in words if backend not in _WORDS.get(word, ())), None)
    if strange is not None:
        known = " and ".join(f"`{word}` with {' or '.join(ends)}" for word, ends in _WORDS.items())
        raise ValueError(f"{text!r}: {strange!r} does not go with {backend}; there are {known}")
    found = shutil.which(program) if program else None
    if found is None:
        raise ValueError(f"{text!r}: {program or 'nothing'} is no program that can be executed; {_EXAMPLE}")
    python = Path(os.path.abspath(found))  # noqa: PTH100 (resolve would follow the link)
    chosen = name if equals else _default_name(python)
    if not _NAME.fullmatch(chosen):
        raise ValueError(f"{text!r}: {chosen!r} is no name of an environment (letters, digits, . _ -); {_EXAMPLE}")
    return EnvironmentOption(chosen, python, backend, direct="direct" in words, exclusive="exclusive" in words)


def parse_all(texts: Sequence[str]) -> tuple[EnvironmentOption, ...]:
    """Parses all options. Raises ValueError with a sentence for the user, also if two have the same name."""
    options = tuple(map(parse, texts))
    names = [option.name for option in options]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two environments are called {twice!r}: give one another name, as --offload other=PYTHON")
    return options


def _default_name(python: Path) -> str:
    """Returns the folder's name for a virtual environment, and the program's name otherwise."""
    folder = python.parent.parent
    return folder.name.lstrip(".") if python.parent.name == "bin" and (folder / "pyvenv.cfg").exists() else python.name
