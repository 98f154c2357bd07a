"""Prints tables, JSON and plain text on stdout. It imports no gRPC, so that commands start fast."""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

WATCH_SECONDS: Final = 1.0


def present(listing: Callable[[], str], *, watch: bool) -> None:
    """Prints a listing once; with `watch` again after each change, until Ctrl-C. A terminal shows only the last one."""
    out, before = console(), ""
    with contextlib.suppress(KeyboardInterrupt) if watch else contextlib.nullcontext():
        while True:
            shown = listing()
            if shown != before:
                if watch:
                    out.clear()
                print(shown, end="", flush=True)  # noqa: T201
                before = shown
            if not watch:
                return
            time.sleep(WATCH_SECONDS)


def console() -> Console:
    """Returns a console as wide as the terminal. Without a terminal, lines are not wrapped."""
    return Console(width=None if sys.stdout.isatty() else 1000, soft_wrap=True)


def json_text(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def print_json(value: object) -> None:
    print(json_text(value), end="")  # noqa: T201


def new_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def add_row(table: Table, *cells: str) -> None:
    table.add_row(*map(plain, cells))


def say(out: Console, told: object) -> None:
    """Prints lines that may have untrusted text."""
    for line in str(told).split("\n"):
        out.print(plain(line))


def plain(line: str) -> Text:
    """Returns untrusted text as a line without markup and terminal commands."""
    return Text("".join(c if c.isprintable() else "?" for c in line))


def age(seconds: float) -> str:
    whole = int(seconds)
    if (days := whole // 86_400) > 1:
        return f"{days}d{whole // 3600 % 24:02}h"
    if hours := whole // 3600:
        return f"{hours}h{whole // 60 % 60:02}m"
    return f"{whole // 60}m{whole % 60:02}s" if whole >= 60 else f"{whole}s"
