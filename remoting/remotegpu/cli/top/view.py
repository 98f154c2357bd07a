"""The content of `remotegpu top`: tables of rows, sorted and filtered. Pure; snapshots make it, `screen` draws it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, Protocol

from remotegpu.api.quantities import format_bytes
from remotegpu.cli.output import age

BAR_WIDTH: Final = 20
_SHARES: Final = "█▒"  # in turns, so that one sees where the next begins
_OTHERS: Final = "░"
_FREE: Final = "·"


class Cell(NamedTuple):
    text: str
    order: float | str  # the sort key; of the same type in a column


def words(text: str) -> Cell:
    return Cell(text, text.lower())


def amount(number: float, text: str = "") -> Cell:
    return Cell(text or f"{number:g}", number)


def memory(count: int) -> Cell:
    return Cell(format_bytes(count), count)


def ago(seconds: float) -> Cell:
    return Cell(age(max(0.0, seconds)), seconds)


def percent(part: float | None) -> Cell:
    """Returns the cell of a part that may be unknown."""
    return Cell("-", -1.0) if part is None else Cell(f"{100 * part:.0f} %", part)


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    cells: tuple[Cell, ...]
    # Its story as far as the snapshot has it.
    story: tuple[str, ...] = ()

    def has(self, text: str) -> bool:
        """Whether the text is in its cells or its story."""
        return any(text in each.lower() for each in (*(cell.text for cell in self.cells), *self.story))


@dataclass(frozen=True, slots=True)
class Sort:
    column: int | None = None  # None: as the table is
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def arranged(self, sort: Sort, text: str) -> list[Row]:
        """Returns the rows that have the text, in order."""
        found = [row for row in self.rows if row.has(text.lower())]
        if sort.column is None:
            return found
        column = sort.column
        return sorted(found, key=lambda row: row.cells[column].order, reverse=sort.descending)


@dataclass(frozen=True, slots=True)
class View:
    title: str
    tables: tuple[Table, ...]
    # Problems: lost sources, and objects that the user may not see.
    notes: tuple[str, ...] = ()


class Snapshot(Protocol):
    def view(self, now: float) -> View:
        """Returns the tables. `now` in seconds since 1970."""

    def to_object(self) -> dict[str, Any]:
        """Returns the snapshot for programs."""


class Source(Protocol):
    def read(self) -> Snapshot:
        """Reads the present state; after a failure returns the last state with the error. Raises if there is none."""

    def story(self, key: str) -> Sequence[str]:
        """Reads the whole story of the row with that key; empty if the row's own is all."""


def bar(whole: int, shares: Iterable[int], others: int = 0, width: int = BAR_WIDTH) -> str:
    """Draws shares of a whole one after the other, then the part of others, then the free part."""
    parts = [each for each in shares if each]
    ends = [min(width, round(end * width / whole)) if whole else 0 for end in accumulate([0, *parts, max(0, others)])]
    lengths = [end - start for start, end in pairwise(ends)]
    filled = "".join(_SHARES[index % 2] * length for index, length in enumerate(lengths[:-1]))
    return (filled + _OTHERS * lengths[-1]).ljust(width, _FREE)


def lost(what: str, seconds: float, why: str) -> str:
    """Returns a note that the data shown for it are old."""
    return f"{what} is lost and shown as it was {age(max(0.0, seconds))} ago; trying again: {why}"
