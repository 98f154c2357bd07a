"""Frameworks from their wheels, unmodified, on a null GPU: nothing fails or hangs, and steps cost what is published.

No kernel runs, so this shows that calls are accepted, never that a result is right.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from null.counting import LONG, PYTHON, SECONDS, SHORT, Run, cost_of_a_step, run
from null.published import costs

PUBLISHED = costs()
# Libraries ask for these in passing and go on without.
DONE_WITHOUT = {"cuLogsRegisterCallback"}
FAILURES = ("refused", "refused value", "refused slot")
# A program's caching and a library's heuristics are not the same in every run.
TOLERANCE = 1.1


@pytest.mark.null_frameworks
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("program", PUBLISHED)
def test_a_program_runs_and_costs_what_is_published(program: str, tmp_path: Path) -> None:
    assert PYTHON.exists(), "run `make test-null-frameworks`, which installs the wheels"
    short, long = (run(program, steps, tmp_path) for steps in (SHORT, LONG))
    for done in (short, long):
        check(done)
    cost, published = cost_of_a_step(short, long), PUBLISHED[program]
    print(f"{program}: {cost}")
    assert cost.round_trips <= published.round_trips * TOLERANCE + 1
    assert cost.kilobytes_sent <= published.kilobytes_sent * TOLERANCE + 1
    assert cost.calls <= published.calls * TOLERANCE + 1


def check(done: Run) -> None:
    assert done.code == 0, f"{done.out}{done.err}"
    # Functions and tables that libraries look for, and what NVML does not know, are no failures.
    missing = {one["name"] for one in done.missing if one["event"] in FAILURES} - DONE_WITHOUT
    assert not missing, f"asked for what is not provided: {missing}"
    assert "internal error" not in done.err, done.err
    assert done.statistics["round_trips"] > 0
