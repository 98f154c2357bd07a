"""Runs `remotegpu top`: live in a terminal, or once as text or JSON."""

import sys
import time
from typing import Final

from remotegpu.cli import exits
from remotegpu.cli.output import add_row, console, new_table, print_json, say
from remotegpu.cli.top.view import Sort, Source, View

_NO_TEXTUAL: Final = (
    "a live view needs Textual: `python -m pip install 'remotegpu[top]'`; without it `--once` shows the same once"
)


def top(source: Source, *, once: bool, as_json: bool) -> None:
    """Shows a source until the user quits, or once. Raises CliError or ApplianceError if the first read fails."""
    if as_json:
        print_json(source.read().to_object())
        return
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("remotegpu: this is no terminal, so it is shown once; --once says so too", file=sys.stderr)  # noqa: T201
        once = True
    if once:
        show(source.read().view(time.time()))
        return
    try:
        from remotegpu.cli.top.screen import TopApp  # noqa: PLC0415 (only some have it, and it takes a while)
    except ImportError as error:
        raise exits.CliError(exits.SOFTWARE, _NO_TEXTUAL) from error
    app = TopApp(source, source.read())
    app.run()
    if app.failure:
        raise app.failure


def show(view: View) -> None:
    out = console()
    say(out, view.title)
    for table in view.tables:
        out.print()
        shown = new_table(*table.columns)
        for row in table.arranged(Sort(), ""):
            add_row(shown, *(cell.text for cell in row.cells))
        out.print(shown if shown.row_count else f"{table.name}: none")
    for note in view.notes:
        say(out, f"\nnote: {note}")
