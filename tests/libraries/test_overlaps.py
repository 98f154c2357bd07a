"""The overlap checker beside NVIDIA's libraries and CuPy on several streams: it tells of none of them, and of cuBLAS as
soon as its driver does not say which stream is which.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from support import libraries
from support.libraries import Library
from support.system import CROWDED, REMOTEGPU

TABLE = libraries.load()
PRODUCT = re.compile(
    r"^remotegpu: overlap: .* on stream (0x\w+) \w+ and kernel '\w*sgemm\w*' on stream (0x\w+) changes bytes 0x",
    re.MULTILINE,
)


def run(library: Library, program: str, case: str, rounds: int, folder: Path) -> subprocess.CompletedProcess[str]:
    caches = {variable: f"{folder}/{name}" for variable, name in libraries.CACHES.items()}
    checked = {"REMOTEGPU_CHECK": "overlap", "LIBRARIES_ROUNDS": str(rounds)}
    where = [REMOTEGPU, "run", "--native", "-p", libraries.SHARE, "--"]
    return subprocess.run(
        [*where, str(library.python), str(libraries.PROGRAMS / program), case],
        env=os.environ | caches | checked, capture_output=True, text=True, timeout=CROWDED * library.seconds,
    )  # fmt: skip


def on_several_streams() -> list[object]:
    names = ("cublas-12.9", "cublas-13.4", "cupy")
    cases = [(name, case, program) for name in names for case, program in TABLE[name].cases().items()]
    return [pytest.param(*each, id="-".join(each[:2]), marks=pytest.mark.xdist_group(each[0])) for each in cases]


@pytest.mark.parametrize(("name", "case", "program"), on_several_streams())
def test_a_library_that_knows_its_streams_is_not_told(name: str, case: str, program: str, tmp_path: Path) -> None:
    done = run(TABLE[name], program, case, 5, tmp_path)
    found = json.loads(done.stdout)
    assert ("failed" in found, "overlap:" in done.stderr) == (False, False), done.stdout + done.stderr


def test_products_with_one_workspace_are_told_in_the_first_round(tmp_path: Path) -> None:
    done = run(TABLE["cublas-12.9"], "old_tables.py", "two_streams", 1, tmp_path)
    found = json.loads(done.stdout)
    assert found.get("wrong", 0) > 0, done.stdout + done.stderr
    told = PRODUCT.findall(done.stderr)
    assert told and all(first != second for first, second in told), done.stderr
