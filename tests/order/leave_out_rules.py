"""Runs random programs on workers that leave out one rule of order each: `leave_out_rules.py WORKER [RULE...]`,
with `tests` in PYTHONPATH.

WORKER is built with the feature `order-faults`. Prints a line for each rule: the seed of the program that shows it, and
what was wrong. Exit code 1 if a rule can be left out without any of REMOTEGPU_ORDER_FAULT_PROGRAMS programs noticing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from support.builds import linked_dist, replace

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "random_program.py"
RULES = ROOT / "remoting" / "driverapi" / "src" / "rules.rs"
PROGRAMS = int(os.environ.get("REMOTEGPU_ORDER_FAULT_PROGRAMS", "500"))
#: No program can see these left out: the software GPU cancels what a context that is destroyed has not begun. A test of
#: the worker does, on a driver that can be stopped: `a_context_goes_when_its_work_is_done`.
UNSEEN = {"context-destroy"}
#: Programs that run in one process. A program that never ends shows a rule, too.
BATCH, SECONDS_A_PROGRAM = 25, 4


def rules() -> list[str]:
    named = re.findall(r'^    \w+ = "([a-z-]+)";$', RULES.read_text(), re.MULTILINE)
    # Those of mirrors are left out by `leave_out_mirror_rules.py`.
    order = [rule for rule in named if not rule.startswith(("mirror-", "idle-", "track-"))]
    return [rule for rule in order if rule not in UNSEEN]


def dist_without(rule: str, worker: Path, folder: Path) -> Path:
    """An installation whose worker leaves out the rule."""
    dist = linked_dist(folder)
    replace(dist, worker.resolve(), "REMOTEGPU_ORDER_FAULT", rule)
    return dist


def first_difference(dist: Path, profile: str) -> str | None:
    command = [str(Path(sys.executable).parent / "remotegpu"), "run", "--profile", profile, "--"]
    for first in range(0, PROGRAMS, BATCH):
        program = [sys.executable, str(PROGRAM), str(first), str(min(BATCH, PROGRAMS - first))]
        try:
            run = subprocess.run(
                command + program, capture_output=True, text=True, timeout=60 + BATCH * SECONDS_A_PROGRAM,
                env=os.environ | {"REMOTEGPU_DIST": str(dist)},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"a program from {first} on does not end"
        results = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        for result in results:
            if result["differs"] is not None:
                return f"program {result['seed']}: {result['differs'][:100]}"
        if run.returncode:
            return f"program {first + len(results)}: the process ended with {run.returncode}: {run.stderr[-200:]}"
    return None


def main() -> int:
    worker, chosen = Path(sys.argv[1]), sys.argv[2:] or rules()
    unnoticed = []
    for rule in chosen:
        with tempfile.TemporaryDirectory() as folder:
            difference = first_difference(dist_without(rule, worker, Path(folder)), "slow")
        print(f"{rule:20} {difference or 'NOT NOTICED'}", flush=True)
        if difference is None:
            unnoticed.append(rule)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
