"""Each sentence of the table holds natively and on a share, and fails where a driver breaks it.

Deviations are in the table with their reasons, and are tested too: a row that holds again has to lose its deviation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from documented.page import PAGE, text
from documented.row import KINDS, Row
from documented.table import ROWS
from documented.verdicts import GROUPS, SOFTWARE_GPU, check, natively, on
from support.system import Appliance, appliance


@pytest.fixture(scope="module")
def share() -> Iterator[Appliance]:
    with appliance() as it:
        yield it


@pytest.mark.parametrize("group", GROUPS)
def test_rows_hold_natively(group: str) -> None:
    check(natively(group, SOFTWARE_GPU), "native")


@pytest.mark.parametrize("group", GROUPS)
def test_rows_hold_on_a_share(share: Appliance, group: str) -> None:
    check(on(share, group), "share")


@pytest.mark.parametrize("group", GROUPS)
def test_row_fails_where_a_driver_breaks_its_rule(group: str) -> None:
    verdicts = natively(group, SOFTWARE_GPU, "--broken")
    unseen = [ROWS[number].name for number, verdict in verdicts.items() if verdict == "holds"]
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
