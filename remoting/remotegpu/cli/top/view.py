"""The content of `remotegpu top`: tables that can be sorted and filtered. Sources build it, `screen` draws it. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, Protocol

from remotegpu.api.quantities import format_bytes
from remotegpu.cli.output import age

BAR_WIDTH: Final = 20
_SHARES: Final = "█▒"  # alternating, so that the borders of shares are visible
_OTHERS: Final = "░"
_FREE: Final = "·"


class Cell(NamedTuple):
    text: str
    order: float | str  # the sort key, of the same type in all rows of a column


def words(text: str) -> Cell:
    return Cell(text, text.lower())


def amount(number: float, text: str = "") -> Cell:
    return Cell(text or f"{number:g}", number)


def memory(count: int) -> Cell:
    return Cell(format_bytes(count), count)


def ago(seconds: float) -> Cell:
    return Cell(age(max(0.0, seconds)), seconds)


def percent(part: float | None) -> Cell:
    """Returns a cell with a part as a percentage; None is unknown."""
    return Cell("-", -1.0) if part is None else Cell(f"{100 * part:.0f} %", part)


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    cells: tuple[Cell, ...]
    # Lines with details of the row, as far as the snapshot has them.
    story: tuple[str, ...] = ()

    def has(self, text: str) -> bool:
        """Whether the lower-case `text` is in a cell or in the story."""
        return any(text in each.lower() for each in (*(cell.text for cell in self.cells), *self.story))


@dataclass(frozen=True, slots=True)
class Sort:
    column: int | None = None  # None: the order of the table
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def arranged(self, sort: Sort, text: str) -> list[Row]:
        """Returns the rows that have the text in them, sorted."""
        found = [row for row in self.rows if row.has(text.lower())]
        if sort.column is None:
            return found
        column = sort.column
        return sorted(found, key=lambda row: row.cells[column].order, reverse=sort.descending)


@dataclass(frozen=True, slots=True)
class View:
    title: str
    tables: tuple[Table, ...]
    # Notes about lost sources, and about objects that the user may not see.
    notes: tuple[str, ...] = ()


class Snapshot(Protocol):
    def view(self, now: float) -> View:
        """Returns the tables. `now` is in seconds since 1970."""

    def to_object(self) -> dict[str, Any]:
        """Returns the snapshot as an object for JSON."""


class Source(Protocol):
    def read(self) -> Snapshot:
        """Reads the current state. If that fails, returns the last state with the error, or raises if there is none."""

    def story(self, key: str) -> Sequence[str]:
        """Reads the whole story of a row; empty if the row already has it."""


def bar(whole: int, shares: Iterable[int], others: int = 0, width: int = BAR_WIDTH) -> str:
    """Draws a bar of `width` characters: the shares of a whole, then the part of others, then the free part."""
    parts = [each for each in shares if each]
    ends = [min(width, round(end * width / whole)) if whole else 0 for end in accumulate([0, *parts, max(0, others)])]
    lengths = [end - start for start, end in pairwise(ends)]
    filled = "".join(_SHARES[index % 2] * length for index, length in enumerate(lengths[:-1]))
    return (filled + _OTHERS * lengths[-1]).ljust(width, _FREE)


def lost(what: str, seconds: float, why: str) -> str:
    """Returns a note that a source is lost and that its shown data are old."""
    return f"{what} is lost and shown as it was {age(max(0.0, seconds))} ago; trying again: {why}"
