"""Runs a program of this folder on a null GPU of an appliance of its own, and counts what a step of it costs."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from null.published import Cost
from support.system import REMOTEGPU, ROOT

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = Path(os.environ.get("REMOTEGPU_NULL_PYTHON", ROOT / "target" / "null-frameworks" / "bin" / "python"))
# Long enough for a cold start on two busy CPUs; a hang is a failure, not a wait.
SECONDS = 400
SHORT, LONG = 4, 12


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str
    statistics: dict[str, int]  # of all processes that used CUDA
    missing: list[dict[str, Any]]


def run(program: str, steps: int, folder: Path, *options: str) -> Run:
    statistics, report = folder / f"{program}-{steps}", folder / f"{program}-{steps}-report.json"
    statistics.mkdir()
    command = [REMOTEGPU, "run", "--profile", "null-h100", "--report-file", str(report), *options, "--"]
    done = subprocess.run(
        [*command, str(PYTHON), str(PROGRAMS / f"{program}.py"), str(steps)],
        capture_output=True, text=True, timeout=SECONDS, env=os.environ | {"REMOTEGPU_STATS": str(statistics)},
    )  # fmt: skip
    processes = [json.loads(file.read_text()) for file in statistics.iterdir()]
    counted = {name: sum(one[name] for one in processes) for name in ("calls", "round_trips", "bytes_sent")}
    missing = json.loads(report.read_text())["missing"] if report.is_file() else []
    return Run(done.returncode, done.stdout, done.stderr, counted, missing)


def cost_of_a_step(short: Run, long: Run) -> Cost:
    """Start, loading and warming up are in both runs; the difference is steady steps."""

    def each(name: str) -> float:
        return float(long.statistics[name] - short.statistics[name]) / (LONG - SHORT)

    return Cost(each("calls"), each("round_trips"), each("bytes_sent") / 1000)
