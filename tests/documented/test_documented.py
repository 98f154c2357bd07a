"""Each sentence of the table holds natively and on a share, and fails where a driver breaks it.

Deviations are in the table with their reasons, and are tested too: a row that holds again has to lose its deviation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from documented.page import PAGE, text
from documented.row import KINDS, Row
from documented.table import ROWS
from support.system import DIST, Appliance, appliance

GROUPS = (*KINDS, "alone")
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def share() -> Iterator[Appliance]:
    with appliance() as it:
        yield it


def _verdicts(command: list[str], environment: dict[str, str]) -> dict[int, str]:
    """Runs a group of rows. Returns the verdict of each row."""
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=170,
        env=os.environ | {"PYTHONPATH": str(TESTS)} | environment,
    )  # fmt: skip
    lines = [line.split(" ", 1) for line in run.stdout.splitlines()]
    found = {int(number): verdict for number, verdict in lines}
    asked = command[command.index("documented.run") + 1]
    wanted = {n for n, row in enumerate(ROWS) if (asked == "alone") == row.alone and asked in ("alone", row.kind)}
    assert found.keys() == wanted, f"no verdict of {sorted(wanted - found.keys())}: {run.stderr}"
    return found


def _natively(group: str, *options: str) -> dict[int, str]:
    return _verdicts(
        [sys.executable, "-m", "documented.run", group, *options], {"LD_LIBRARY_PATH": str(DIST / "native")}
    )


def _on(share: Appliance, group: str) -> dict[int, str]:
    return _verdicts(share.command(sys.executable, "-m", "documented.run", group), {})


def _check(verdicts: dict[int, str], place: str) -> None:
    wrong = [
        f"{ROWS[number].name}: {verdict}"
        for number, verdict in verdicts.items()
        if (verdict == "holds") == (place in ROWS[number].otherwise)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("group", GROUPS)
def test_rows_hold_natively(group: str) -> None:
    _check(_natively(group), "native")


@pytest.mark.parametrize("group", GROUPS)
def test_rows_hold_on_a_share(share: Appliance, group: str) -> None:
    _check(_on(share, group), "share")


@pytest.mark.parametrize("group", GROUPS)
def test_row_fails_where_a_driver_breaks_its_rule(group: str) -> None:
    unseen = [ROWS[number].name for number, verdict in _natively(group, "--broken").items() if verdict == "holds"]
    assert not unseen, "\n".join(unseen)


def test_the_table_has_its_size() -> None:
    kinds = Counter(row.kind for row in ROWS)
    assert len(ROWS) >= 200
    assert min(kinds[kind] for kind in KINDS) >= 20


def test_no_row_is_there_twice() -> None:
    def key(row: Row) -> tuple[str, str, str]:
        return row.kind, row.function, row.says

    assert not [each for each, times in Counter(map(key, ROWS)).items() if times > 1]


def test_page_is_the_table() -> None:
    assert PAGE.read_text() == text(), "write it with PYTHONPATH=tests python -m documented.page"
