"""The notes that `make release` takes from the changelog for a version."""

from __future__ import annotations

import runpy

import pytest
from support.system import ROOT

CHANGELOG = """# Changelog

## [Unreleased]

Soon.

## [1.1.0] - 2026-02-01

### Added

- Something [1.0.0] did not have.

## [1.0.0]

First.
"""
notes_of = runpy.run_path(str(ROOT / "tools" / "release.py"))["notes_of"]


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("1.1.0", "### Added\n\n- Something [1.0.0] did not have."),
        ("1.0.0", "First."),
        ("1.2.0", "Soon."),
    ],
)
def test_the_notes_are_the_section_of_the_version(version: str, text: str) -> None:
    assert notes_of(CHANGELOG, version) == f"# remotegpu {version}\n\n{text}\n"


def test_a_changelog_that_says_nothing_stops_the_release() -> None:
    with pytest.raises(RuntimeError, match="no section"):
        notes_of("# Changelog\n\n## [Unreleased]\n", "1.0.0")
