"""Measures the cost of page-locked memory that kernels use in place, for docs/benchmarks.md.

    PYTHONPATH=tests .venv/bin/python tools/compare/mirrors.py [ROW ...]

Without rows, measures all. Each row is a process on a share of a software GPU, with an appliance of its own; the output
contains the machine's load. `catboost` and `xgboost` need their venvs (`PYTHONPATH=tests .venv/bin/python
tools/libraries.py install catboost xgboost`). The rows of 1 GiB need 5 GB of memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.system import PROGRAMS, REMOTEGPU, ROOT, Appliance, appliance

MIB: Final = 1 << 20
NOTED: Final = {"REMOTEGPU_TRACK_WRITES": "1"}
DIRECT: Final = {"REMOTEGPU_CARRIER": "direct"}
TRAININGS: Final = Path(__file__).parent / "trainings.py"


@dataclass(frozen=True)
class Row:
    command: tuple[str, ...]
    settings: tuple[dict[str, str], ...]
    options: tuple[str, ...] = ()
    share: str = "0.5"
    is_native_too: bool = False


def bench(*arguments: object) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAMS / "bench_mirrors.py"), *map(str, arguments))


def training(library: str, *options: str) -> tuple[str, ...]:
    python = ROOT / "target" / "libraries" / library / "bin" / "python"
    return (str(python), str(TRAININGS), library, *options)


LARGE: Final = ("--session-budget", f"mirror-bytes={2048 * MIB}")
ROWS: Final = {
    "unchanged": Row(bench("unchanged"), ({}, DIRECT)),
    "words": Row(bench("host"), ({}, DIRECT)),
    "device": Row(bench("device"), ({}, DIRECT)),
    "none": Row(bench("none"), ({}, DIRECT)),
    "100MiB": Row(bench("unchanged", 1, 25 * MIB), (DIRECT, DIRECT | NOTED, NOTED)),
    "100MiB-word": Row(bench("word", 1, 25 * MIB), (DIRECT | NOTED, NOTED)),
    "1GiB": Row(bench("unchanged", 1, 256 * MIB), (DIRECT | NOTED,), LARGE),
    "catboost": Row(training("catboost"), (NOTED,)),
    "catboost-1mb": Row(training("catboost", "pinned_memory_size=1mb"), ({},)),
    "xgboost": Row(training("xgboost"), ({}, NOTED), is_native_too=True),
}


def measure(it: Appliance, row: Row, settings: dict[str, str]) -> str:
    done = it.run(*row.command, share=row.share, env=settings, timeout=600)
    return done.stdout.strip() if done.returncode == 0 else f"failed: {done.stderr[-400:]}"


def natively(row: Row) -> str:
    command = [REMOTEGPU, "run", "--native", "--", *row.command]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else f"failed: {done.stderr[-400:]}"


def main(names: list[str]) -> None:
    for name in names or ROWS:
        row = ROWS[name]
        with appliance("--grace", "0s", *row.options, memory_mib=16 << 10) as it:
            for settings in row.settings:
                how = " ".join(f"{key}={value}" for key, value in settings.items()) or "by default"
                print(f"{name}, {how}, load {os.getloadavg()[0]:.1f}: {measure(it, row, settings)}", flush=True)
        if row.is_native_too:
            print(f"{name}, natively, load {os.getloadavg()[0]:.1f}: {natively(row)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
