"""CuPy, numba-cuda, cuda.core and cuda.bindings from their wheels, with NVIDIA's libraries from theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from frameworks.running import Outcomes, cases_of
from support.system import REMOTEGPU

PROGRAMS = (
    "cuda_bindings.py",
    "cuda_core.py",
    "cupy_arrays.py",
    "cupy_kernels.py",
    "cupy_libraries.py",
    "cupy_runtime.py",
    "numba_arrays.py",
)


# The first case of a program waits for all.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("program", "case"), [(program, case) for program in PROGRAMS for case in cases_of(program)])
def test_framework(run: Callable[[str], Outcomes], program: str, case: str) -> None:
    run(program).check(case)


def test_the_first_thing_that_a_user_tries() -> None:
    source = (
        "import cupy as cp; a = cp.random.rand(256, 256); print(float((a @ a).sum()), *cp.cuda.runtime.memGetInfo())"
    )
    command = [REMOTEGPU, "run", "-p", "0.25", "--", sys.executable, "-c", source]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert shown.returncode == 0, shown.stderr
    total, free, memory = map(float, shown.stdout.split())
    # 256 * 256 * 256 products of two means of 0.5.
    assert 0.97 < total / (256**3 / 4) < 1.03
    assert 0 < free <= memory == 2 << 30
