"""vLLM from its wheel, unedited, on a share of a null H100: it decodes, and a step makes few round trips.

No kernel runs. A rule writes how many tokens were sampled, so nothing here shows that an answer is right.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from null.serving import PYTHON, RULES, SECONDS, model, settings
from support.system import REMOTEGPU

PROGRAM = Path(__file__).parent / "programs" / "vllm_decode.py"
STEPS = 100
# Beside those that are counted.
MORE_TOKENS = 30
MOST_ROUND_TRIPS = 10
DIVERGED = 65
pytestmark = [pytest.mark.null_serving, pytest.mark.timeout(SECONDS + 60)]


def decode(folder: Path, longest: int, *options: str, steps: int = STEPS, code: int = 0, **more: str) -> dict[str, Any]:
    """What the program counted on a quarter of a null H100."""
    counted = {
        "REMOTEGPU_STATS": str(folder / "statistics"),
        # The program's own process decodes, so that it can count each step.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    command = [REMOTEGPU, "run", "--profile", "null-h100", "-p", "0.25", "--", str(PYTHON), str(PROGRAM)]
    done = subprocess.run(
        [*command, str(model(folder)), str(longest), str(steps), *options],
        capture_output=True, text=True, timeout=SECONDS, env=os.environ | settings() | counted | more,
    )  # fmt: skip
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    print(found)
    for batch in ("1", "32"):
        assert found[batch]["tokens"] == [steps + MORE_TOKENS]
        assert 0 < found[batch]["round_trips"] <= MOST_ROUND_TRIPS
    return found | {"stderr": done.stderr}


def test_the_wheel_is_unedited() -> None:
    """Each file of Python is as the wheel's own list says; pip compared the wheel with the pinned hash."""
    (record,) = PYTHON.parents[1].glob("lib/python*/site-packages/vllm-*.dist-info/RECORD")
    folder = record.parents[1]
    rows = [row for row in csv.reader(record.read_text().splitlines()) if row[0].endswith(".py")]
    assert len(rows) > 1000
    for name, digest, _ in rows:
        kind, _, expected = digest.partition("=")
        made = base64.urlsafe_b64encode(hashlib.new(kind, (folder / name).read_bytes()).digest()).rstrip(b"=")
        assert made.decode() == expected, name


@pytest.mark.parametrize("options", [(), ("eager",)], ids=["graphs", "eager"])
def test_a_step_makes_few_round_trips(tmp_path: Path, options: tuple[str, ...]) -> None:
    decode(tmp_path, 1024, *options)


def test_a_step_of_the_old_runner_makes_few_round_trips(tmp_path: Path) -> None:
    """It samples by kernels of other names, so the rule matches nothing, which fails the run."""
    found = decode(tmp_path, 1024, code=DIVERGED, VLLM_USE_V2_MODEL_RUNNER="0")
    assert f"{RULES}, line 2: no kernel that ran matches the rule" in found["stderr"]


def test_a_long_context_starts(tmp_path: Path) -> None:
    """The tables of 256 sequences of 131,072 tokens are page-locked, and have mirrors."""
    found = decode(tmp_path, 131072, "eager", steps=10)
    assert "kernels use 128 MiB of page-locked memory in place" in found["stderr"]
