"""The table of docs/frameworks.md with programs' costs on a null GPU: the published figures are the tested ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "frameworks.md"
HEADING = "## On a null GPU"


@dataclass(frozen=True)
class Cost:
    """The cost of one step: the difference between two runs, divided by their difference in steps."""

    calls: float
    round_trips: float
    kilobytes_sent: float


def costs() -> dict[str, Cost]:
    """Reads the table. Returns the costs by the program's name without `.py`."""
    section = DOCUMENT.read_text().split(HEADING)[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): Cost(*(float(cell.replace(",", "")) for cell in row[2:5])) for row in rows}
