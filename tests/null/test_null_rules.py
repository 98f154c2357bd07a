"""Rules of a null GPU: what its memory holds after kernels that it did not run, and runs that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.system import REMOTEGPU, Appliance

PROGRAM = Path(__file__).parent / "programs" / "ruled_memory.py"
RULES = "# counts\nadd 2 4 i32 5 blocks\n\n*crement 0 0 f32 0.5\n"
USAGE, DIVERGED = 2, 65
WAYS = pytest.mark.parametrize("way", [("--native",), ()], ids=["native", "share"])


def run(folder: Path, rules: str, *options: str, profile: str = "null-h100") -> subprocess.CompletedProcess[str]:
    file = folder / "rules"
    file.write_text(rules)
    return subprocess.run(
        [REMOTEGPU, "run", *options, "--profile", profile, "--", sys.executable, str(PROGRAM)],
        capture_output=True, text=True, timeout=120, env=os.environ | {"REMOTEGPU_NULL_RULES": str(file)},
    )  # fmt: skip


@WAYS
def test_rules_write_in_the_order_of_the_stream_and_in_replays(tmp_path: Path, way: tuple[str, ...]) -> None:
    done = run(tmp_path, RULES, *way)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "before": [0, 0, 0, 0],
        "after a launch": [0, 5, 5, 0],
        "between two fills": [[7, 5, 5, 7], [9, 9, 9, 9]],
        "after a capture": [9, 9, 9, 9],
        "replays": [[1, 5, 5, 1], [2, 5, 5, 2]],
        "a float": 0.5,
    }
    assert f"2 rules of {tmp_path / 'rules'} write numbers in place of kernels" in done.stderr.splitlines()[0]


@WAYS
def test_a_rule_that_matched_nothing_fails_the_run(tmp_path: Path, way: tuple[str, ...]) -> None:
    done = run(tmp_path, f"{RULES}never* 0 0 i32 1\n", *way)
    assert done.returncode == DIVERGED, done.stderr
    assert json.loads(done.stdout)["a float"] == 0.5
    told = f"remotegpu: {tmp_path / 'rules'}, line 5: no kernel that ran matches the rule 'never* 0 0 i32 1'"
    assert [line for line in done.stderr.splitlines() if "no kernel that ran" in line] == [told]


@WAYS
def test_a_rule_beyond_memory_is_a_fault_that_names_it(tmp_path: Path, way: tuple[str, ...]) -> None:
    done = run(tmp_path, "add 2 0 i32 1 1000000000000\n", *way)
    assert done.returncode == 1
    assert "CUDA error 700" in done.stderr


@pytest.mark.parametrize(
    ("rules", "profile", "told"),
    [
        ("add 2 0 int 1\n", "null-h100", "line 1: 'int' is no type"),
        ("add 2 0 i32 1\n", "normal", "add --profile null-h100"),
    ],
)
def test_a_file_that_cannot_be_meant_is_told(tmp_path: Path, rules: str, profile: str, told: str) -> None:
    done = run(tmp_path, rules, "--native", profile=profile)
    assert done.returncode != 0
    assert told in done.stderr


def test_an_appliance_tells_at_its_end_what_matched_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rules"
    file.write_text("add 2 4 i32 5 blocks\nnever 0 0 i32 1\n")
    monkeypatch.setenv("REMOTEGPU_NULL_RULES", str(file))
    it = Appliance(profile="null-h100", memory_mib=80 << 10)
    try:
        it.wait_until_ready()
        done = it.run(sys.executable, str(PROGRAM), share="0.25")
        assert json.loads(done.stdout)["after a launch"] == [0, 5, 5, 0], done.stderr
    finally:
        it.process.terminate()
        it.process.wait(timeout=60)
        told = it.log.whole()
    assert it.process.returncode == DIVERGED, told
    assert "line 2: no kernel that ran matches the rule 'never 0 0 i32 1'" in told
    assert "line 1" not in told
