"""Random programs give what the model of CUDA's order says, natively and on a share.

REMOTEGPU_ORDER_PROGRAMS says how many run each way, REMOTEGPU_ORDER_SEED which is the first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.system import REMOTEGPU, appliance

PROGRAM = Path(__file__).parent / "programs" / "random_program.py"
PROGRAMS = int(os.environ.get("REMOTEGPU_ORDER_PROGRAMS", "40"))
FIRST = int(os.environ.get("REMOTEGPU_ORDER_SEED", "0"))


def check(run: subprocess.CompletedProcess[str]) -> None:
    results = [json.loads(line) for line in run.stdout.splitlines()]
    wrong = [result for result in results if result["differs"] is not None]
    assert not wrong, f"`random_program.py {wrong[0]['seed']} 1` repeats it: {wrong[0]}\n{run.stderr}"
    assert (run.returncode, len(results)) == (0, PROGRAMS), run.stderr
    # The queue of 900 launches was filled on top of what each program does.
    assert all(result["commands"] >= 1100 for result in results)


@pytest.mark.timeout(60 + PROGRAMS * 5)
def test_natively() -> None:
    command = [REMOTEGPU, "run", "--native", "--", sys.executable, str(PROGRAM), str(FIRST), str(PROGRAMS)]
    check(subprocess.run(command, capture_output=True, text=True, timeout=60 + PROGRAMS * 5))


@pytest.mark.timeout(60 + PROGRAMS * 5)
@pytest.mark.parametrize("profile", ["slow", "hostile"])
def test_on_a_share(profile: str) -> None:
    """`slow` keeps more launches waiting than a stream may have in flight."""
    with appliance(profile=profile) as remote:
        run = remote.run(sys.executable, str(PROGRAM), str(FIRST), str(PROGRAMS), timeout=60 + PROGRAMS * 5)
    check(run)
