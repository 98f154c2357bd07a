"""Libraries from the package index, natively on the software GPU and on a share: values against the CPU, and the same
bits both ways. tests/libraries/libraries.toml is their list; `python tools/libraries.py install` makes their venvs.
"""

from __future__ import annotations

import pytest
from support import libraries
from support.libraries import Library

TABLE = libraries.load()


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
