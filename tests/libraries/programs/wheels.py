"""Finds the shared libraries that lie in wheels of this venv, where no loader looks for them."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

FOLDERS = ("nvidia/*/lib", "cutensor/lib")


def find(name: str) -> str:
    """The newest file of that name in a wheel of this venv."""
    patterns = [f"{folder}/{name}.so*" for folder in FOLDERS]
    found = sorted(path for place in sys.path for pattern in patterns for path in Path(place).glob(pattern))
    if not found:
        raise OSError(f"no wheel in this venv has {name}; install it by tools/libraries.py install")
    return str(found[-1])


def library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(find(name), ctypes.RTLD_GLOBAL)
