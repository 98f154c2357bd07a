"""The live view of `remotegpu top`: Textual draws the tables of `view`, and keys sort and filter them."""

import threading
import time
from collections.abc import Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from remotegpu.cli.output import plain
from remotegpu.cli.top.view import Row, Snapshot, Sort, Source, Table

READ_SECONDS: Final = 1.0
_MOST_SECONDS: Final = 10.0
# The pause after a read, as a multiple of the duration of the read.
_PAUSE_PER_WORK: Final = 4


class Read(Message):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class Failed(Message):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class Told(Message):
    def __init__(self, key: str, lines: Sequence[str]) -> None:
        super().__init__()
        self.key, self.lines = key, lines


class Rows(DataTable[Text]):
    """A table of the view, in the order that the user chose."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Story"),
        Binding("tab", "app.focus_next", "Next table"),
    ]

    def __init__(self, table: Table) -> None:
        super().__init__(id=table.name.lower(), cursor_type="row", zebra_stripes=True)
        self.columns_named, self.sort_by = table.columns, Sort()
        self.shown: list[Row] = []
        for column in table.columns:
            self.add_column(column)

    def draw(self, table: Table, text: str) -> None:
        """Draws the changes of a table. The cursor stays on its row."""
        rows = table.arranged(self.sort_by, text)
        if [row.key for row in rows] == [row.key for row in self.shown]:
            self._change(rows)
        else:
            self._replace(rows)
        self.shown = rows
        hidden, column = len(table.rows) - len(rows), self.sort_by.column
        said = f"{table.name}: {len(rows)}" + (f", {hidden} hidden by the filter" if hidden else "")
        order = "descending" if self.sort_by.descending else "ascending"
        self.border_title = said if column is None else f"{said}, by {self.columns_named[column]}, {order}"

    def _change(self, rows: Sequence[Row]) -> None:
        for line, (old, new) in enumerate(zip(self.shown, rows, strict=True)):
            for column, (before, now) in enumerate(zip(old.cells, new.cells, strict=True)):
                if before.text != now.text:
                    self.update_cell_at(Coordinate(line, column), plain(now.text), update_width=True)

    def _replace(self, rows: Sequence[Row]) -> None:
        at, line = self.shown[self.cursor_row].key if self.shown else "", self.cursor_row
        self.clear()
        for row in rows:
            self.add_row(*(plain(cell.text) for cell in row.cells), key=row.key)
        places = {row.key: place for place, row in enumerate(rows)}
        self.move_cursor(row=places.get(at, max(0, min(line, len(rows) - 1))), animate=False)


class Story(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "Back")]

    def __init__(self, key: str, lines: Sequence[str]) -> None:
        super().__init__()
        self.key, self._text = key, Static(_lines(lines), id="story")

    def compose(self) -> ComposeResult:
        yield VerticalScroll(self._text)
        yield Footer()

    def tell(self, lines: Sequence[str]) -> None:
        self._text.update(_lines(lines))


class TopApp(App[None]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Rows { height: auto; max-height: 35%; border: round $foreground; }
    Rows:last-of-type { height: 1fr; max-height: 100%; }
    Rows:focus { border: double $foreground; }
    Story { align: center middle; }
    Story VerticalScroll { width: 90%; height: auto; max-height: 80%; border: round $foreground; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("s", "sort", "Sort by the next column"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "unfilter", "All", show=False),
    ]

    def __init__(self, source: Source, snapshot: Snapshot) -> None:
        super().__init__()
        self._source, self._snapshot = source, snapshot
        self._ended = threading.Event()
        # An unexpected error that ended the view. Textual would print it with all variables, which include tokens.
        self.failure: Exception | None = None

    def compose(self) -> ComposeResult:
        self._title, self._notes = Static(id="title"), Static(id="notes")
        self._rows = [Rows(table) for table in self._snapshot.view(time.time()).tables]
        self._filter = Input(placeholder="Show only rows with this text; Esc shows all", id="filter", compact=True)
        yield from (self._title, self._notes, *self._rows, self._filter, Footer())

    def on_mount(self) -> None:
        self._filter.display = False
        self._draw()
        self._rows[-1].focus()
        # A daemon thread: a source that does not answer must not delay the end of the program.
        threading.Thread(target=self._follow, daemon=True).start()

    def on_unmount(self) -> None:
        self._ended.set()

    def _follow(self) -> None:
        pause = READ_SECONDS
        while not self._ended.wait(pause):
            begun = time.monotonic()
            try:
                self.post_message(Read(self._source.read()))
            except Exception as error:
                self.post_message(Failed(error))
                return
            pause = min(max(READ_SECONDS, _PAUSE_PER_WORK * (time.monotonic() - begun)), _MOST_SECONDS)

    def on_read(self, read: Read) -> None:
        self._snapshot = read.snapshot
        self._draw()

    def on_failed(self, failed: Failed) -> None:
        self.failure = failed.error
        self.exit()

    def _draw(self) -> None:
        if not self._title.is_attached:
            return  # the view is about to end
        view = self._snapshot.view(time.time())
        self._title.update(plain(view.title))
        self._notes.update(_lines(view.notes))
        self._notes.display = bool(view.notes)
        for rows, table in zip(self._rows, view.tables, strict=True):
            rows.draw(table, self._filter.value)

    def action_sort(self) -> None:
        if isinstance(self.focused, Rows):
            column = self.focused.sort_by.column
            self._sort(self.focused, Sort(0 if column is None else (column + 1) % len(self.focused.columns_named)))

    def action_reverse(self) -> None:
        if isinstance(self.focused, Rows):
            now = self.focused.sort_by
            self._sort(self.focused, Sort(now.column or 0, not now.descending))

    def on_data_table_header_selected(self, selected: DataTable.HeaderSelected) -> None:
        if isinstance(rows := selected.data_table, Rows):
            again = rows.sort_by.column == selected.column_index
            self._sort(rows, Sort(selected.column_index, again and not rows.sort_by.descending))

    def _sort(self, rows: Rows, sort: Sort) -> None:
        rows.sort_by = sort
        self._draw()

    def action_filter(self) -> None:
        self._filter.display = True
        self._filter.focus()

    def action_unfilter(self) -> None:
        if self._filter.display:
            self._filter.value = ""
            self._filter.display = False
            self._rows[-1].focus()

    def on_input_changed(self) -> None:
        self._draw()

    def on_input_submitted(self) -> None:
        self._rows[-1].focus()

    def on_data_table_row_selected(self, selected: DataTable.RowSelected) -> None:
        if isinstance(rows := selected.data_table, Rows) and selected.cursor_row < len(rows.shown):
            row = rows.shown[selected.cursor_row]
            self.push_screen(Story(row.key, row.story))
            threading.Thread(target=self._ask, args=[row.key], daemon=True).start()

    def _ask(self, key: str) -> None:
        try:
            if told := self._source.story(key):
                self.post_message(Told(key, told))
        except Exception as error:
            self.post_message(Failed(error))

    def on_told(self, told: Told) -> None:
        if isinstance(self.screen, Story) and self.screen.key == told.key:
            self.screen.tell(told.lines)


def _lines(lines: Sequence[str]) -> Text:
    return Text("\n").join(map(plain, lines))
