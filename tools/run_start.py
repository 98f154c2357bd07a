"""Measures how long `remotegpu run` takes for an empty command, and its parts. Prints medians in ms.

PYTHONPATH=tests .venv/bin/python tools/run_start.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

from support.system import REMOTEGPU, REMOTEGPU_RUN, appliance

RUNS = 20


def main() -> None:
    with appliance() as there:
        share = ("-a", there.endpoint, "-p", "0.25")
        print(f"load {os.getloadavg()[0]:.1f}")
        for name, command in {
            "python -c pass": [sys.executable, "-c", "pass"],
            "python -S -c pass, without what .pth files import": [sys.executable, "-S", "-c", "pass"],
            "remotegpu-run": [REMOTEGPU_RUN, *share, "--", "true"],
            "remotegpu run": [REMOTEGPU, "run", *share, "--", "true"],
            "remotegpu run, where it stays in Python": [REMOTEGPU, "run", "--report", *share, "--", "true"],
        }.items():
            print(f"{milliseconds(command):6.0f}  {name}", flush=True)
        print(f"load {os.getloadavg()[0]:.1f}")


def milliseconds(command: list[str]) -> float:
    taken = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        taken.append(time.perf_counter() - started)
    return median(taken) * 1e3


if __name__ == "__main__":
    main()
