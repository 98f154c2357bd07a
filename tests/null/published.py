"""The table of docs/frameworks.md that says what programs cost on a null GPU: what is published is what is tested."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "frameworks.md"
HEADING = "## On a null GPU"


@dataclass(frozen=True)
class Cost:
    """Of one step, more or less of which is all that differs between two runs."""

    calls: float
    round_trips: float
    kilobytes_sent: float


def costs() -> dict[str, Cost]:
    """By the program's name without `.py`."""
    section = DOCUMENT.read_text().split(HEADING)[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): Cost(*(float(cell.replace(",", "")) for cell in row[2:5])) for row in rows}
