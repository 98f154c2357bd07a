"""CuPy from its wheel, with NVIDIA's libraries from theirs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from frameworks.running import Outcomes, cases_of

PROGRAMS = ("cupy_arrays.py", "cupy_kernels.py", "cupy_runtime.py")


# The first case of a program waits for all.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("program", "case"), [(program, case) for program in PROGRAMS for case in cases_of(program)])
def test_cupy(run: Callable[[str], Outcomes], program: str, case: str) -> None:
    run(program).check(case)
