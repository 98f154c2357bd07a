"""Unmodified numba-cuda programs on the software GPU, compared with NumPy."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "programs" / "numba_cases.py"
CASES = re.findall(r"^def (\w+)\(\) -> None:$", SOURCE.read_text(), re.MULTILINE)
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def finished(run: Run) -> subprocess.CompletedProcess[str]:
    """All cases in one process, which prints the names of those that passed: starting numba takes seconds."""
    return run(SOURCE.name, *CASES)


@pytest.mark.parametrize("case", CASES)
def test_numba(finished: subprocess.CompletedProcess[str], case: str) -> None:
    assert case in finished.stdout.split(), finished.stderr


def test_numba_with_blocks_in_fixed_order_and_a_hostile_driver(run: Run) -> None:
    result = run(SOURCE.name, *CASES[:4], REMOTEGPU_SOFTGPU_THREADS="1", REMOTEGPU_SOFTGPU_PROFILE="hostile")
    assert result.stdout.split() == CASES[:4], result.stderr
