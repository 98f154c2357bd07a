"""Runs programs directly on the software GPU, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.system import DIST, PRELOADED

PROGRAMS = Path(__file__).parent / "programs"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def library_folder() -> Path:
    """The folder of the libcuda.so.1 under test."""
    folder = Path(os.environ.get("REMOTEGPU_NATIVE_LIB_DIR", DIST / "native"))
    if not (folder / "libcuda.so.1").exists():
        pytest.skip("the software GPU is not built (make build)")
    return folder


@pytest.fixture(scope="session")
def run(library_folder: Path) -> Run:
    """run(program, *arguments, **environment): the finished process."""

    def start(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(PROGRAMS / program), *arguments]
        variables = os.environ | PRELOADED | {"LD_LIBRARY_PATH": str(library_folder)} | environment
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, env=variables)

    return start
