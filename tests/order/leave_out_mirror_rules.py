"""Runs the tests of `mirror_rules.toml` without their rules: `leave_out_mirror_rules.py TARGET [FAULT...]`, with
`tests` in PYTHONPATH.

TARGET is the folder in which cargo has built client, worker and software GPU with the feature `order-faults`. Each
test must pass with all rules and fail without each of its own. Prints a line for each rule, and its seconds. Exit
code 1 if a rule can be left out without the test noticing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.builds import linked_dist, replace, replace_library
from support.system import ROOT

FAULT = "REMOTEGPU_ORDER_FAULT"
TABLE = Path(__file__).with_name("mirror_rules.toml")
#: A test that does not end shows a rule, too.
SECONDS = 600


@dataclass(frozen=True)
class Case:
    name: str
    command: tuple[str, ...]
    faults: tuple[str, ...]


def cases(target: Path) -> Iterator[Case]:
    for test in tomllib.loads(TABLE.read_text())["test"]:
        name, faults = test["name"], tuple(test["faults"])
        if package := test.get("package"):
            what = ("-p", package, *test["target"].split(), "--features", f"{package}/order-faults")
            cargo = ("cargo", "test", "--release", "--locked", "--quiet", *what, "--target-dir", str(target))
            yield Case(name, (*cargo, "--", "--exact", name), faults)
        else:
            yield Case(name, (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", name), faults)


def passes(case: Case, dist: Path, fault: str) -> tuple[bool, str]:
    """Runs the test. Returns whether it passed, and the last lines of what it printed."""
    environment = os.environ | {"REMOTEGPU_DIST": str(dist), FAULT: fault}
    with subprocess.Popen(
        case.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env=environment,
    ) as run:  # fmt: skip
        try:
            output, _ = run.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            return False, f"does not end in {SECONDS} s"
    return run.returncode == 0, "\n".join(output.splitlines()[-30:])


def main() -> int:
    target, chosen = Path(sys.argv[1]).resolve(), sys.argv[2:]
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        dist = linked_dist(Path(folder))
        replace_library(dist, "client", target / "release" / "libremotegpu_client.so")
        replace_library(dist, "native", target / "release" / "libsoftgpu.so")
        for case in cases(target):
            faults = [fault for fault in case.faults if not chosen or fault in chosen]
            for fault in ["", *faults] if faults else []:
                replace(dist, target / "release" / "remotegpu-worker", FAULT, fault)
                begun = time.monotonic()
                passed, output = passes(case, dist, fault)
                is_right = passed == (fault == "")
                outcome = ("passes" if passed else "noticed") if is_right else "FAILS" if fault == "" else "NOT NOTICED"
                took = time.monotonic() - begun
                print(f"{fault or 'with all rules':45} {outcome:12} {took:6.1f} s  {case.name}", flush=True)
                if not is_right:
                    wrong.append(fault or case.name)
                    print(output if fault == "" else "", flush=True)
    print(f"==> wrong: {', '.join(wrong)}" if wrong else "==> each rule is noticed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
