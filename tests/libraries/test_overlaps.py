"""The overlap checker on NVIDIA's libraries and CuPy with several streams: it reports none of them, and reports cuBLAS
as soon as its driver does not say which stream is which.
"""

from __future__ import annotations

import json
import re

import pytest
from support import libraries
from support.libraries import Library

TABLE = libraries.load()
PRODUCT = re.compile(
    r"^remotegpu: overlap: .* on stream (0x\w+) \w+ and kernel '\w*sgemm\w*' on stream (0x\w+) changes bytes 0x",
    re.MULTILINE,
)


def run(library: Library, program: str, case: str, rounds: int) -> tuple[str, str]:
    checked = {"REMOTEGPU_CHECK": "overlap", "LIBRARIES_ROUNDS": str(rounds)}
    stdout, stderr, _ = libraries.output(library, ["--native"], program, [case], checked)
    return stdout, stderr


def on_several_streams() -> list[object]:
    names = ("cublas-12.9", "cublas-13.4", "cupy")
    cases = [(name, case, program) for name in names for case, program in TABLE[name].cases().items()]
    return [pytest.param(*each, id="-".join(each[:2]), marks=pytest.mark.xdist_group(each[0])) for each in cases]


@pytest.mark.parametrize(("name", "case", "program"), on_several_streams())
def test_a_library_that_knows_its_streams_is_not_told(name: str, case: str, program: str) -> None:
    stdout, stderr = run(TABLE[name], program, case, 5)
    found = json.loads(stdout)
    assert ("failed" in found, "overlap:" in stderr) == (False, False), stdout + stderr


def test_products_with_one_workspace_are_told_in_the_first_round() -> None:
    stdout, stderr = run(TABLE["cublas-12.9"], "old_tables.py", "two_streams", 1)
    found = json.loads(stdout)
    assert found.get("wrong", 0) > 0, stdout + stderr
    told = PRODUCT.findall(stderr)
    assert told and all(first != second for first, second in told), stderr
