"""The page of the libraries is what its results say, and these are of the table's versions and cases."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from support import libraries, shards
from support.libraries import Library, Outcome

TOOL = runpy.run_path(str(libraries.ROOT / "tools" / "libraries.py"))
TABLE = libraries.load()


def test_the_page_is_that_of_the_stored_results() -> None:
    """If not: `PYTHONPATH=tests python tools/libraries.py page`."""
    text = TOOL["PAGE"].read_text()
    assert TOOL["page"](text, TOOL["stored"]()) == text


def test_the_results_are_of_what_the_table_names() -> None:
    """If not: `PYTHONPATH=tests python tools/libraries.py run NAME --write`."""
    stored = TOOL["stored"]()
    assert [name for name, each in TABLE.items() if each.shard and name not in stored] == []
    for name, row in stored.items():
        assert (row.version, row.cases) == (TABLE[name].version(), len(TABLE[name].cases())), name
        # A case that is due is one that failed, and no other failed.
        assert set(row.failed) == set(TABLE[name].due), name
        assert row.same_bits == row.cases - len(row.failed) - len(TABLE[name].differs), name


def test_every_library_is_pinned_and_in_a_part_that_exists() -> None:
    parts = {each.name for each in shards.load().shards}
    for each in TABLE.values():
        pinned = (libraries.REQUIREMENTS / f"{each.venv or each.name}.txt").read_text().splitlines()
        assert [line for line in pinned if "==" not in line and not line.startswith("#")] == []
        assert each.shard in parts or not each.shard
        assert each.cases() and {*each.due, *each.differs} <= set(each.cases())
        assert [text for text in each.due.values() if not re.search(r"; issue \d+$", text)] == []
    files = {path.stem for path in libraries.REQUIREMENTS.iterdir()}
    assert files == {each.venv or each.name for each in TABLE.values()}


@pytest.fixture
def library() -> Library:
    return TABLE["openmm"]


def test_a_row_counts_only_what_was_right_and_names_the_rest(library: Library) -> None:
    native = {"a": Outcome(error=1e-7, sha256="x"), "b": Outcome("it crashed"), "c": Outcome(error=2e-6, sha256="y")}
    share = {
        "a": Outcome(error=1e-7, sha256="x"),
        "b": Outcome(error=0.5, sha256="z"),
        "c": Outcome(error=1e-6, sha256="n"),
    }
    row = libraries.row(library, native, share)
    assert (row.cases, row.native, row.share, row.same_bits, row.error) == (3, 2, 3, 1, 2e-6)
    assert row.failed == {"b": ("natively", "it crashed")}
    line = TOOL["lines"]([row], {"openmm": library})[-1]
    assert "| 3 | 2 | 3 | 2e-06 | 1 of 2 | `b`: it crashed (natively) |" in line


def test_a_file_of_results_is_read_as_it_was_written(tmp_path: Path, library: Library) -> None:
    outcome = {"a": Outcome(error=0.0, sha256="x")}
    row = libraries.row(library, outcome, outcome)
    TOOL["store"]({library.name: row, "gone": row}, tmp_path / "results.json")
    assert TOOL["stored"](tmp_path / "results.json") == {library.name: row}
    assert set(json.loads((tmp_path / "results.json").read_text())) == {"table", "rows"}


def test_wrong_values_and_silence_are_no_pass(tmp_path: Path) -> None:
    """The runner of the cases, on programs of a test's own, without a GPU."""
    cases = runpy.run_path(str(libraries.PROGRAMS / "cases.py"))
    value, outcome = cases["Value"], cases["outcome"]
    assert outcome(lambda: iter([value([1.0, 2.0], [1.0, 2.1], 0.01)]))["failed"].startswith("1 of 1 values are wrong")
    assert outcome(lambda: iter([value([1, 2], [2, 1])]))["failed"] == "1 of 1 values are wrong, by 2 at most"
    assert outcome(lambda: iter([value(float("nan"), 1.0, 1.0)]))["failed"]
    assert outcome(lambda: iter([]))["failed"] == "it compared nothing"
    right = outcome(lambda: iter([value([1.0, 2.0], [1.0, 2.001], 0.01)]))
    assert right["error"] == pytest.approx(0.0005, rel=1e-3)
    assert len(right["sha256"]) == 64
    with pytest.raises(AssertionError, match="array"):
        outcome(lambda: iter([value([1.0], [1.0, 2.0])]))


def test_the_table_is_toml_that_names_nothing_else() -> None:
    allowed = set(Library.__dataclass_fields__)
    for each in tomllib.loads(libraries.TABLE.read_text())["library"]:
        assert set(each) <= allowed
