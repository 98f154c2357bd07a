"""Writes docs/documented.md from the table: `PYTHONPATH=tests python -m documented.page`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from documented.row import KINDS, Row
from documented.table import ROWS

PAGE: Final = Path(__file__).parents[2] / "docs" / "documented.md"

_TITLES: Final = {
    "errors": "Errors",
    "null": "What may be NULL",
    "lifetimes": "Lifetimes",
    "order": "Order",
    "synchronous": "What waits, and what does not",
    "threads": "Threads and fork",
}

_HEAD: Final = """# CUDA's documentation as a test

<!-- Written by `PYTHONPATH=tests python -m documented.page`; change tests/documented/rows. -->

Sentences of the documentation of CUDA's driver API and of NVML, in our words. Each has a small program
(`tests/documented/rows`) that checks it, natively on the software GPU and on a share. So what both do wrong alike is
seen, which a comparison of the two would not show.

- Each row is also run on a driver with this one rule broken: a function that stands before the real one answers
  another code, does nothing, does its work early or late, or twice. The row has to fail there.
- **No real GPU was at hand.** `make test-gpu` runs the table by NVIDIA's driver, natively and on a share, and was not
  run with one. Where that driver does otherwise than its documentation, the row will say so, and the driver decides.
- Rows about `fork` have no sentence in CUDA's reference; they are what programs are known to see.
- `make shard-programs` runs all of it, natively, on a share and broken, and prints how many seconds it took.

"""


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


def _result(row: Row) -> str:
    places = {"native": "natively", "share": "on a share", "driver": "by NVIDIA's driver"}
    others = [f"otherwise {places[place]}: {reason}" for place, reason in row.otherwise.items()]
    return "; ".join(others) or "holds"


def text() -> str:
    otherwise = sum(1 for row in ROWS if row.otherwise)
    kinds = Counter(row.kind for row in ROWS)
    out = _HEAD + f"{len(ROWS)} rows; {otherwise} of them say what we do otherwise, and why.\n"
    for kind in KINDS:
        out += f"\n## {_TITLES[kind]}\n\n{kinds[kind]} rows.\n\n"
        out += "| function | chapter | what it says | result |\n|---|---|---|---|\n"
        for row in ROWS:
            if row.kind == kind:
                out += f"| `{row.function}` | {row.section} | {_cell(row.says)} | {_cell(_result(row))} |\n"
    return out


if __name__ == "__main__":
    PAGE.write_text(text())
