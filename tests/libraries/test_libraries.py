"""Libraries from the package index, natively on the software GPU and on a share: values against the CPU, and the same
bits both ways. tests/libraries/libraries.toml is their list; `python tools/libraries.py install` makes their venvs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support import libraries
from support.libraries import MEMORY_MIB, PROGRAMS, Library
from support.system import REMOTEGPU, appliance

TABLE = libraries.load()
# Two streams of one handle were wrong once: they are tried by the ways as well that an appliance of this machine does
# not take by itself.
TWO_STREAMS = {"cublas-12.9": "cublas_streams.py", "faiss": "faiss_searches.py"}
CARRIERS = ("direct", "grpc")


def parameters() -> list[object]:
    """An id begins with the shard, by which .ci/shards.toml finds it, and is alike for a library up to its last hyphen,
    by which one process runs all of it. A library's first case waits for all of them.
    """
    made: list[object] = []
    for library in TABLE.values():
        for case in library.cases():
            marks = [pytest.mark.timeout(library.longest())]
            if not library.shard:
                marks.append(pytest.mark.thorough)
            if case in library.due:
                marks.append(pytest.mark.xfail(reason=library.due[case], strict=True))
            shard = library.shard.removeprefix("libraries-") or "all"
            made.append(pytest.param(library, case, id=f"{shard}-{library.name}-{case}", marks=marks))
    return made


@pytest.mark.parametrize(("library", "case"), parameters())
def test_library(library: Library, case: str) -> None:
    assert library.python.exists(), f"{library.python} is not there: PYTHONPATH=tests python tools/libraries.py install"
    found = libraries.both(library.name)
    native, share = found["native"][case], found["share"][case]
    assert (native.failed, share.failed) == ("", "")
    if case not in library.differs:
        assert share.sha256 == native.sha256


@pytest.mark.parametrize(
    ("name", "carrier"), [pytest.param(name, way, id=f"{name}-{way}") for name in TWO_STREAMS for way in CARRIERS]
)
@pytest.mark.timeout(1800)
def test_two_streams_by_the_other_carriers(name: str, carrier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, program = TABLE[name], TWO_STREAMS[name]
    cases = [case for case, of in library.cases().items() if of == program]
    monkeypatch.setenv("REMOTEGPU_CARRIER", carrier)
    with appliance(memory_mib=MEMORY_MIB) as it:
        found = libraries.run(library, ["--appliance", it.endpoint], cases)
    assert {case: outcome.failed for case, outcome in found.items()} == dict.fromkeys(cases, "")


def test_two_streams_in_short() -> None:
    """The cuBLAS of this environment, natively and by each carrier, a few rounds: what the shard has at length."""
    command = [sys.executable, str(PROGRAMS / "cublas_streams.py"), "two_streams", "captured"]
    results = []
    with appliance() as it:
        share = ["--appliance", it.endpoint, "-p", "0.5"]
        for where, carrier in ((["--native"], "auto"), *((share, carrier) for carrier in ("auto", *CARRIERS))):
            run = subprocess.run(
                [REMOTEGPU, "run", *where, "--", *command],
                capture_output=True, text=True, timeout=120,
                env=os.environ | {"REMOTEGPU_CARRIER": carrier, "LIBRARIES_ROUNDS": "10"},
            )  # fmt: skip
            results.append([json.loads(line) for line in run.stdout.splitlines()])
            assert [each.get("failed") for each in results[-1]] == [None, None], run.stdout + run.stderr
    assert all(each == results[0] for each in results)
