"""`make test-gpu-frameworks`: programs of frameworks natively, on 0.5 of a GPU, and two at 0.25 together.

Each program of `tests/gpu/programs/` prints one line of JSON: `losses`, as hexadecimal floats, and `seconds`, of its
steps without the start. Where two native runs give the same losses to the bit, so must every run on a share. Prints
a table of ratios. The exit code is 1 if a program failed or differed, else 0. "Not run", no failure, is a program
whose framework this Python does not have, and one whose kernels the software GPU does not execute
(REMOTEGPU_TEST_BACKEND=software, which tests this file and not the programs).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from support.system import REMOTEGPU, appliance

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 150  # that one program may take


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one run of a program: with losses, or with the last line that it wrote."""

    losses: tuple[str, ...] = ()
    seconds: float = 0.0
    whole_seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    program: str
    verdict: str  # "equal", "close", "failed: ...", "differs: ...", "not run: ..."
    native: float = 0.0
    half: float = 0.0
    together: tuple[float, ...] = ()

    @property
    def good(self) -> bool:
        return not self.verdict.startswith(("failed", "differs"))


Run = Callable[[Path], Outcome]


def judge(native: Sequence[Outcome], shares: Sequence[Outcome], tolerance: float) -> str:
    """Compares the native runs with those on shares. Returns the verdict."""
    for where, runs in (("natively", native), ("on a share", shares)):
        if failed := [run for run in runs if run.error or not run.losses]:
            return f"failed {where}: {failed[0].error or 'it printed no losses'}"
    first = native[0].losses
    if all(run.losses == first for run in native):
        for run in shares:
            if run.losses != first:
                step = next((i for i, pair in enumerate(zip(first, run.losses, strict=False)) if pair[0] != pair[1]), 0)
                return f"differs: {len(run.losses)} losses for {len(first)}, from step {step} on"
        return "equal"
    for run in shares:
        if len(run.losses) != len(first) or any(
            _apart(a, b) > tolerance for a, b in zip(first, run.losses, strict=True)
        ):
            return f"differs: further from a native run than {tolerance:g}, as two native runs are not"
    return "close"


def _apart(one: str, other: str) -> float:
    a, b = float.fromhex(one), float.fromhex(other)
    return abs(a - b) / max(abs(a), abs(b), 1e-30)


def read(done: subprocess.CompletedProcess[str], whole_seconds: float) -> Outcome:
    """The last line of JSON that a program printed, or the reason why there is none."""
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            said = json.loads(line)
            if done.returncode == 0:
                return Outcome(tuple(said["losses"]), float(said["seconds"]), whole_seconds)
    last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
    return Outcome(error=f"exit code {done.returncode}: {last}", whole_seconds=whole_seconds)


def started(command: Sequence[str]) -> Run:
    def run(program: Path) -> Outcome:
        begin = time.monotonic()
        try:
            whole = [*command, sys.executable, str(program)]
            done = subprocess.run(whole, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return Outcome(error=f"it did not end within {SECONDS} s")
        return read(done, time.monotonic() - begin)

    return run


def needs(program: Path) -> list[str]:
    """Returns the imports that the head of a program names: `# needs: torch, numpy`."""
    found = re.search(r"^# needs: (.*)$", program.read_text(), re.MULTILINE)
    return [] if found is None else [name.strip() for name in found[1].split(",")]


def measure(program: Path, native: Run, on_share: Callable[[str], Run], software: bool) -> Row:
    if missing := [name for name in needs(program) if not find_spec(name)]:
        return Row(program.stem, f"not run: no {', '.join(missing)} here")
    if software and "# machine code only" in program.read_text():
        return Row(program.stem, "not run: the software GPU does not execute its kernels")
    directly = [native(program), native(program)]
    half = on_share("0.5")(program)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(on_share("0.25"), [program, program]))
    verdict = judge(directly, [half, *together], tolerance=1e-2)
    fastest = min(run.seconds for run in directly)
    return Row(program.stem, verdict, fastest, half.seconds, tuple(run.seconds for run in together))


def table(rows: Sequence[Row]) -> str:
    heads = ("program", "native s", "0.5 / native", "2 x 0.25 / native", "losses")
    lines = [heads]
    for row in rows:
        ratio = [f"{seconds / row.native:.2f}" if row.native else "-" for seconds in (row.half, *row.together)]
        lines.append(
            (row.program, f"{row.native:.3f}" if row.native else "-", ratio[0], " ".join(ratio[1:]) or "-", row.verdict)
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu_frameworks", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("programs", nargs="*", type=Path, help="default: all of tests/gpu/programs")
    chosen = parser.parse_args(arguments).programs or sorted(PROGRAMS.glob("*.py"))
    software = os.environ.get("REMOTEGPU_TEST_BACKEND") == "software"
    native = started([REMOTEGPU, "run", "--native", "--"] if software else [])
    with appliance(backend="software" if software else "cuda") as it:

        def on_share(share: str) -> Run:
            return started([REMOTEGPU, "run", "--appliance", it.endpoint, "-p", share, "--"])

        rows = []
        for program in chosen:
            rows.append(measure(program, native, on_share, software))
            print(f"{program.stem}: {rows[-1].verdict}", flush=True)
    print(f"\n{table(rows)}")
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
