"""llama.cpp's test of all its operations, CUDA against the CPU, by all kernels: hours (`make test-serving-values`)."""

from __future__ import annotations

import os
from collections import Counter
from itertools import chain
from typing import Final

import pytest
from llama_cpp.operations import ENDED, FAILED, JOINED, PASSED, Outcome, all_outcomes, outcomes, part, supported

HOURS: Final = 12
pytestmark = [pytest.mark.serving_values, pytest.mark.timeout(HOURS * 3600)]
# At most so many cases of each operation; all if it is not set.
MOST: Final = int(os.environ.get("REMOTEGPU_CASES", "0"))
# A case that takes longer is noted, and does not fail the test.
SECONDS: Final = 600


def test_every_operation_is_the_cpu_s() -> None:
    there = supported()
    each = (outcomes(operation, part(cases, MOST or len(cases)), SECONDS) for operation, cases in there.items())
    # Those that are joined have no list of their cases.
    joined = (all_outcomes(operation, SECONDS) for operation in (() if MOST else JOINED))
    seen: Counter[tuple[str, str]] = Counter()
    wrong: list[Outcome] = []
    for outcome in chain.from_iterable(chain(each, joined)):
        seen[outcome.operation, outcome.what] += 1
        if outcome.what != PASSED:
            print(outcome)
        if outcome.what in (FAILED, ENDED):
            wrong.append(outcome)
    for operation in sorted({operation for operation, _ in seen}):
        print(operation, {what: many for (of, what), many in seen.items() if of == operation})
    assert not wrong
    assert {operation for operation, what in seen if what == PASSED} >= set(there)
