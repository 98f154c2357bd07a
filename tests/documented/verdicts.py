"""Verdicts on the rows of a group, natively or on a share, compared with the table."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from documented.row import KINDS
from documented.table import ROWS
from support.system import DIST, Appliance

GROUPS: Final = (*KINDS, "alone")
SOFTWARE_GPU: Final = {"LD_LIBRARY_PATH": str(DIST / "native")}
_TESTS: Final = Path(__file__).parents[1]
_SECONDS: Final = 170


def natively(group: str, environment: dict[str, str], *options: str) -> dict[int, str]:
    """By the driver that the loader finds in `environment`."""
    return _verdicts([sys.executable, "-m", "documented.run", group, *options], environment)


def on(share: Appliance, group: str, part: str = "0.25") -> dict[int, str]:
    return _verdicts(share.command(sys.executable, "-m", "documented.run", group, share=part), {})


def check(verdicts: Mapping[int, str], *places: str) -> None:
    """Each row holds, but for those that do otherwise in one of `places`, which have to."""
    wrong = [
        f"{ROWS[number].name}: {verdict}"
        for number, verdict in verdicts.items()
        if (verdict == "holds") == bool(ROWS[number].otherwise.keys() & set(places))
    ]
    assert not wrong, "\n".join(wrong)


def _verdicts(command: list[str], environment: dict[str, str]) -> dict[int, str]:
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=_SECONDS,
        env=os.environ | {"PYTHONPATH": str(_TESTS)} | environment,
    )  # fmt: skip
    lines = [line.split(" ", 1) for line in run.stdout.splitlines()]
    found = {int(number): verdict for number, verdict in lines}
    asked = command[command.index("documented.run") + 1]
    wanted = {n for n, row in enumerate(ROWS) if (asked == "alone") == row.alone and asked in ("alone", row.kind)}
    assert found.keys() == wanted, f"no verdict of {sorted(wanted - found.keys())}: {run.stderr}"
    return found
