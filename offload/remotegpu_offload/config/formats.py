"""Parsers for the formats that the schema names. Each converts a text to the model's value, or raises ValueError."""

import re
from collections.abc import Callable
from typing import Final

from remotegpu.api.durations import parse_duration
from remotegpu.api.quantities import parse_fraction, parse_memory

_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MODULES: Final = re.compile(r"[^\W\d]\w*(\.[\w*?]+)*")
_CALLABLE: Final = re.compile(r"[^\W\d]\w*(\.[\w*?]+)+")
_VARIABLE: Final = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*")


def _fraction(text: str) -> int:
    fraction = parse_fraction(text)
    if fraction.count != 1:
        raise ValueError(f"{text} is more than one GPU: a session runs on one; write 0.001 to 1")
    return fraction.milli_per_gpu


def _memory(text: str) -> int:
    return parse_memory(text)


def _disconnect(text: str) -> int | None:
    if text == "fail":
        return None
    word, _, time = text.partition(" ")
    if word != "resume":
        raise ValueError(f"{text!r} is neither `fail` nor `resume` and a time, as `resume 60s`")
    return parse_duration(time.strip())


def _period(text: str) -> int | None:
    if text == "never":
        return None
    seconds = parse_duration(text)
    if not seconds:
        raise ValueError("0s is no time between snapshots: write one, as 30s, or never")
    return seconds


def _module(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no name of a module: write it as in an import, as sklearn")
    return text


def _callable(text: str) -> str:
    if not _CALLABLE.fullmatch(text):
        raise ValueError(
            f"{text!r} names nothing: write the module, a dot and the name, as mypkg.train.train_epoch or mypkg.steps.*"
        )
    return text


def is_folder(entry: str) -> bool:
    """Returns whether an entry of `code` is a folder and not a module, by the same criterion as `code.allowed`."""
    return "/" in entry or entry.startswith((".", "~"))


def _code(text: str) -> str:
    if not is_folder(text) and not _MODULES.fullmatch(text):
        raise ValueError(f"{text!r} is neither a module, as mypkg.nets or mypkg.*, nor a folder, as ./src")
    return text


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("an empty path names no file: write a glob, as ./data/**")
    return text


def _variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise ValueError(f"{text!r} is no name of an environment variable; write it, or a glob, as MYAPP_*")
    return text


FORMATS: Final[dict[str, Callable[[str], object]]] = {
    "fraction": _fraction,
    "memory": _memory,
    "disconnect": _disconnect,
    "period": _period,
    "module": _module,
    "callable": _callable,
    "code": _code,
    "path": _path,
    "variable": _variable,
}
