"""CuPy, numba-cuda, cuda.core and cuda.bindings from their wheels, with NVIDIA's libraries from theirs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from frameworks.running import Outcomes, cases_of

PROGRAMS = (
    "cuda_bindings.py",
    "cuda_core.py",
    "cupy_arrays.py",
    "cupy_kernels.py",
    "cupy_runtime.py",
    "numba_arrays.py",
)


# The first case of a program waits for all.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("program", "case"), [(program, case) for program in PROGRAMS for case in cases_of(program)])
def test_framework(run: Callable[[str], Outcomes], program: str, case: str) -> None:
    run(program).check(case)
