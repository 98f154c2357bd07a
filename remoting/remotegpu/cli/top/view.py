"""What `remotegpu top` shows: tables of rows, put in order and filtered. Pure; a snapshot makes it, others draw it."""

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
    order: float | str  # what a table is sorted by; of the same type in a column


def words(text: str) -> Cell:
    return Cell(text, text.lower())


def amount(number: float, text: str = "") -> Cell:
    return Cell(text or f"{number:g}", number)


def memory(count: int) -> Cell:
    return Cell(format_bytes(count), count)


def ago(seconds: float) -> Cell:
    return Cell(age(max(0.0, seconds)), seconds)


def percent(part: float | None) -> Cell:
    """Of something that is not always known."""
    return Cell("-", -1.0) if part is None else Cell(f"{100 * part:.0f} %", part)


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    cells: tuple[Cell, ...]
    # Its story as far as the snapshot knows it.
    story: tuple[str, ...] = ()

    def has(self, text: str) -> bool:
        """In what is shown of it, or told."""
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
        """The rows that have the text, in order."""
        found = [row for row in self.rows if row.has(text.lower())]
        if sort.column is None:
            return found
        column = sort.column
        return sorted(found, key=lambda row: row.cells[column].order, reverse=sort.descending)


@dataclass(frozen=True, slots=True)
class View:
    title: str
    tables: tuple[Table, ...]
    # What is not as it should be: what is lost, and what this person may not see.
    notes: tuple[str, ...] = ()


class Snapshot(Protocol):
    def view(self, now: float) -> View:
        """`now` in seconds since 1970."""

    def to_object(self) -> dict[str, Any]:
        """For programs."""


class Source(Protocol):
    def read(self) -> Snapshot:
        """What is there now; where that cannot be read, what was there, and why. Raises if nothing was read before."""

    def story(self, key: str) -> Sequence[str]:
        """The whole story of the row of that key, asked for; empty if its own is all."""


def bar(whole: int, shares: Iterable[int], others: int = 0, width: int = BAR_WIDTH) -> str:
    """Shares of a whole one after the other, then what others have, then what is free."""
    parts = [each for each in shares if each]
    ends = [min(width, round(end * width / whole)) if whole else 0 for end in accumulate([0, *parts, max(0, others)])]
    lengths = [end - start for start, end in pairwise(ends)]
    filled = "".join(_SHARES[index % 2] * length for index, length in enumerate(lengths[:-1]))
    return (filled + _OTHERS * lengths[-1]).ljust(width, _FREE)


def lost(what: str, seconds: float, why: str) -> str:
    """A note: what is shown of it is old."""
    return f"{what} is lost and shown as it was {age(max(0.0, seconds))} ago; trying again: {why}"
