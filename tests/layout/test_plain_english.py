"""The check of docstrings and comments finds what it is for, in Python and in Rust."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "plain_english.py"))

PYTHON = '''"""Reads a file.

Where it is missing, nothing happens: a second sentence may begin so.
"""


class Reader:
    """{docstring}"""

    text = "What a string says is its own affair: it goes on"  # {comment}
'''

RUST = """//! Reads a file.
//! Where it is missing, nothing happens.

/// {docstring}
/// Of a second line nothing is asked.
fn read() {{
    // What a plain comment begins with is free. {comment}
    let text = "goes on";
}}
"""


def complaints(name: str, source: str) -> list[str]:
    return list(TOOL["complaints"](name, source, TOOL["terms"]()))


@pytest.mark.parametrize(("name", "source"), [("a.py", PYTHON), ("a.rs", RUST)])
def test_plain_text_passes(name: str, source: str) -> None:
    assert complaints(name, source.format(docstring="Whether it is open.", comment="It continues.")) == []


@pytest.mark.parametrize(("name", "source", "line"), [("a.py", PYTHON, 8), ("a.rs", RUST, 4)])
@pytest.mark.parametrize("first", sorted(TOOL["CLAUSES"]))
def test_a_clause_in_front_is_found(name: str, source: str, line: int, first: str) -> None:
    found = complaints(name, source.format(docstring=f"{first} it is.", comment="It continues."))
    assert len(found) == 1
    assert found[0].startswith(f"{name}:{line}: ") and repr(first) in found[0]


@pytest.mark.parametrize(("name", "source"), [("a.py", PYTHON), ("a.rs", RUST)])
def test_a_listed_word_is_found_where_it_is_not_the_fields(name: str, source: str) -> None:
    found = complaints(name, source.format(docstring="Opens the Doors.", comment="It goes on."))
    assert [line.split("'")[1] for line in found] == ["Doors", "goes on"]
    lanes = source.format(docstring="Counts lanes.", comment="It continues.")
    assert len(complaints(name, lanes)) == 1
    assert complaints(f"remoting/softgpu/src/{name}", lanes) == []
