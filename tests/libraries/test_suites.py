"""The libraries' own test suites, natively on the software GPU and on a share: every test passes but those that
tests/libraries/skips names with a reason. `make test-all` runs them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support import suites
from support.libraries import MEMORY_MIB
from support.suites import Found, Suite
from support.system import appliance

TABLE = suites.load()


def parameters() -> list[object]:
    return [
        pytest.param(suite, way, id=f"{suite.name}-{way}", marks=pytest.mark.timeout(suite.longest()))
        for suite in TABLE.values()
        for way in ("natively", "on-a-share")
    ]


def found_on(suite: Suite, where: Sequence[str]) -> Found:
    return suites.run(suite, where, suite.modules())


@pytest.mark.thorough
@pytest.mark.parametrize(("suite", "way"), parameters())
def test_suite(suite: Suite, way: str) -> None:
    assert suite.venv.exists(), f"{suite.venv} is not there: PYTHONPATH=tests python tools/libraries.py install"
    if way == "natively":
        found = found_on(suite, ["--native"])
    else:
        with appliance(memory_mib=MEMORY_MIB) as it:
            found = found_on(suite, ["--appliance", it.endpoint])
    wrong = {test: problem for test, problem in found.tests.items() if problem}
    assert wrong == {}
    assert found.tests
    # A skip that names nothing is of another version.
    assert set(suite.patterns()) == found.used


@pytest.mark.parametrize("suite", TABLE.values(), ids=TABLE)
def test_every_skip_has_a_reason(suite: Suite) -> None:
    assert [each for each in suite.skipped() if not each["reason"].strip() or not each["tests"]] == []
    patterns = suite.patterns()
    assert len(patterns) == len(set(patterns))
