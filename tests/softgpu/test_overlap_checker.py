"""The overlap checker: each race is told, with who and where, and nothing that is ordered or apart is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = "overlap_cases.py"
TEXT = (Path(__file__).parent / "programs" / PROGRAM).read_text()
CASES = re.findall(r"^def (\w+)\(\) -> None:$", TEXT, re.MULTILINE)
RACES = [name for name in CASES if name.startswith("race_")]
ORDERED = [name for name in CASES if not name.startswith("race_")]
CHECKED = {"REMOTEGPU_CHECK": "overlap"}
LINE = re.compile(
    r"^remotegpu: overlap: (.+?) on (.+?) (?:reads|writes|changes) and (.+?) on (.+?) (?:reads|writes|changes) "
    r"bytes 0x[0-9a-f]+ to 0x[0-9a-f]+, and nothing orders them: ",
    re.MULTILINE,
)
# Who is named, where it is not the two kernels that store.
NAMED = {
    "race_of_a_load_and_a_store": {"kernel 'load'", "kernel 'store'"},
    "race_of_a_copy_and_a_kernel": {"a copy", "kernel 'store'"},
    "race_of_a_copys_source_and_a_kernel": {"a copy", "kernel 'store'"},
    "race_of_a_fill_and_a_kernel": {"a fill", "kernel 'load'"},
    "race_with_a_workspace_that_two_streams_share": {"kernel 'gemm'"},
    "race_of_a_free_and_a_kernel": {"kernel 'load'", "cuMemFreeAsync"},
    "race_of_a_free_and_an_allocation": {"cuMemFreeAsync", "cuMemAllocAsync"},
    "race_of_an_atomic_and_a_store": {"kernel 'add'", "kernel 'store'"},
    "race_with_a_flag_that_releases_nothing": {"kernel 'publish_unordered'", "kernel 'consume'"},
    "race_with_what_follows_a_release": {"kernel 'publish_too_early'", "kernel 'consume'"},
}


def test_there_are_enough_programs() -> None:
    assert len(RACES) >= 12 and len(ORDERED) >= 20


@pytest.mark.parametrize("case", RACES)
def test_a_race_is_told(run: Run, case: str) -> None:
    done = run(PROGRAM, case, **CHECKED)
    found = LINE.findall(done.stderr)
    assert (done.returncode, done.stdout, len(found)) == (0, "ok\n", 1), done.stderr
    first, first_stream, second, second_stream = found[0]
    assert {first, second} == NAMED.get(case, {"kernel 'store'", "kernel 'other_store'"})
    assert first_stream != second_stream or "graph" in first_stream


@pytest.mark.parametrize("case", ORDERED)
def test_what_is_ordered_or_apart_is_not_told(run: Run, case: str) -> None:
    done = run(PROGRAM, case, **CHECKED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_nothing_is_told_where_nothing_is_checked(run: Run) -> None:
    done = run(PROGRAM, RACES[0])
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_a_check_that_does_not_exist_is_named(run: Run) -> None:
    done = run(PROGRAM, RACES[0], REMOTEGPU_CHECK="overlaps")
    assert (done.returncode, done.stdout) == (0, "ok\n")
    assert re.fullmatch(r"remotegpu: REMOTEGPU_CHECK=overlaps names no check.* set it to overlap\n", done.stderr)


def test_a_share_refuses(tmp_path: Path) -> None:
    """Before anything is started or asked for, also where the command line is a plain one."""
    for options in (["-p", "0.25"], ["--appliance", "127.0.0.1:1", "-p", "0.25"]):
        command = [
            str(Path(sys.executable).with_name("remotegpu")),
            "run",
            *options,
            "--",
            "touch",
            str(tmp_path / "ran"),
        ]
        variables = os.environ | CHECKED
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=variables)
        assert done.returncode == 2 and not (tmp_path / "ran").exists(), done.stderr
        assert re.fullmatch(r"remotegpu: REMOTEGPU_CHECK=overlap checks nothing on a share.* --native.*\n", done.stderr)
