"""Reads the screen of the live view `remotegpu top`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from remotegpu.cli.top.screen import Rows, TopApp
from remotegpu.cli.top.view import Table


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row.cells] for row in table.rows]


async def seen(pilot: Pilot[None], condition: Callable[[], object], what: str) -> None:
    """Waits until the condition is true. Fails after 30 seconds."""
    try:
        async with asyncio.timeout(30):
            while not condition():
                await pilot.pause(0.05)
    except TimeoutError:
        pytest.fail(f"not within 30 s: {what}")


def drawn(app: TopApp, name: str) -> list[list[str]]:
    """Returns the texts of a table on the screen."""
    rows = app.screen_stack[0].query_one(f"#{name}", Rows)
    return [[str(cell) for cell in rows.get_row_at(line)] for line in range(rows.row_count)]


def said(app: TopApp, where: str) -> str:
    """Returns the text of widgets; empty if they are not on the screen."""
    return "".join(str(each.render()) for each in app.screen.query(where).results(Static))
