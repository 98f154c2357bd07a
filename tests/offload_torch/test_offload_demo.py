"""`make demo-offload`, with fewer epochs: the same program five ways, and the report that compares them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

DEMO = Path(__file__).parents[2] / "examples" / "10-offload" / "demo.py"


def test_five_ways_give_the_same_losses_and_one_round_trip_a_step() -> None:
    command = [sys.executable, str(DEMO), "--python", sys.executable, "--epochs", "4"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if re.match(r"(\w+) +0\.9\d+ ", line)}
    assert list(rows) == ["plain", "device", "switched", "function", "program"]
    digests = {name: row[2] for name, row in rows.items()}
    assert digests["plain"] == digests["function"] == digests["program"]
    assert digests["device"] == digests["switched"]
    # A mask whose size depends on values, and `.item()`.
    trips = {name: float(row[-2]) for name, row in rows.items() if name != "plain"}
    assert trips["device"] < 3
    assert trips["function"] < 1
    assert done.stdout.count("yes  ") == 4 and "NO  " not in done.stdout
