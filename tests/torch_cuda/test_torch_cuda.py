"""An unmodified torch with CUDA (`make torch-bed`) on the software GPU.

Values are compared with those of torch's CPU back end, natively and on a share, and bits both ways with each other.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from torch_cuda import bed

LISTED = tomllib.loads((Path(__file__).parent / "operators.toml").read_text())
SAMPLES = "2"


def listed(how: str) -> set[str]:
    return {name for cause in LISTED["cause"].values() for name in cause.get(how, [])}


@pytest.mark.parametrize("case", bed.cases_of("trainings.py"))
@pytest.mark.timeout(1200)
def test_a_training_is_that_of_the_cpu(case: str) -> None:
    native, share = bed.both("trainings.py", tuple(bed.cases_of("trainings.py")), 600)
    check(case, native, share)


@pytest.mark.parametrize("case", bed.cases_of("processes.py"))
@pytest.mark.timeout(900)
def test_processes_of_torch(case: str) -> None:
    native, share = bed.both("processes.py", tuple(bed.cases_of("processes.py")), 400)
    check(case, native, share)


def check(case: str, native: list[dict[str, Any]], share: list[dict[str, Any]]) -> None:
    mine, theirs = ({each["case"]: each for each in found}[case] for found in (native, share))
    assert ("failed" in mine, "failed" in theirs) == (False, False), (mine, theirs)
    assert mine["sha256"] == theirs["sha256"]


@pytest.mark.timeout(1200)
def test_every_operator_of_torchs_table_in_float32() -> None:
    native, share = bed.both("operators.py", ("float32", SAMPLES), 900)
    # 694 entries, of which 26 have no float32 on both back ends.
    assert len(native) == len(share) == 668
    always, sometimes = listed("always"), listed("sometimes")
    for found in (native, share):
        wrong = {each["operator"]: each["wrong"] for each in found if each["wrong"]}
        assert not (new := {name: said for name, said in wrong.items() if name not in always | sometimes}), new
        assert always <= wrong.keys(), f"right now, so not to be listed: {always - wrong.keys()}"
    bits = {each["operator"]: each["sha256"] for each in native}
    other = {each["operator"] for each in share if bits[each["operator"]] != each["sha256"]}
    assert other <= set(LISTED["cause"]["uninitialised"]["sometimes"]), other
