"""`make demo-offload`: the same program five ways, and the report that compares them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(400)]

DEMO = Path(__file__).parents[3] / "examples" / "10-offload" / "demo.py"


def test_five_ways_give_the_same_losses_and_one_round_trip_a_step() -> None:
    command = [sys.executable, str(DEMO), "--python", sys.executable, "--epochs", "8"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=350, check=False
    )
    assert done.returncode == 0, done.stdout
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if re.match(r"(\w+) +0\.9\d+ ", line)}
    assert list(rows) == ["plain", "device", "switched", "function", "program"]
    digests = {name: row[2] for name, row in rows.items()}
    assert len(set(digests.values())) == 1, digests
    # One `.item()` a step, and the start.
    trips = {name: float(row[-2]) for name, row in rows.items() if name != "plain"}
    assert 1 <= trips["device"] < 1.2
    assert trips["function"] < 0.1
    assert done.stdout.count("yes  ") == 6 and "NO  " not in done.stdout
