"""Runs the tests of `mirror_rules.toml` without their rules: `leave_out_mirror_rules.py TARGET [FAULT...]`, with
`tests` in PYTHONPATH.

TARGET is the folder in which cargo has built client, worker and software GPU with the feature `order-faults`. Each
test must pass with all rules and fail without each of its own. Prints a line for each rule, and its seconds. Exit
code 1 if a rule can be left out without the test noticing.
"""

from __future__ import annotations

import contextlib
import functools
import json
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

PACKAGES = "worker", "client", "driverapi"


@dataclass(frozen=True)
class Case:
    name: str
    command: tuple[str, ...]
    folder: Path
    faults: tuple[str, ...]


@functools.cache
def built_tests(target: Path) -> dict[tuple[str, str], str]:
    """Builds the Rust tests with the feature. Returns the programs by package and target."""
    features = ",".join(f"remotegpu-{package}/order-faults" for package in PACKAGES)
    packages = (word for package in PACKAGES for word in ("-p", f"remotegpu-{package}"))
    which = ("--lib", "--test", "session", "--test", "moving", "--features", features, "--target-dir", str(target))
    how = ("--no-run", "--release", "--locked", "--quiet", "--message-format=json")
    build = ("cargo", "test", *how, *packages, *which)
    built = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = {}
    for artifact in map(json.loads, built.splitlines()):
        if program := artifact.get("executable"):
            name = artifact["target"]["name"] if "test" in artifact["target"]["kind"] else "lib"
            found[Path(artifact["manifest_path"]).parent.name, name] = program
    return found


def cases(target: Path, chosen: list[str]) -> Iterator[Case]:
    """Yields the tests of the chosen faults, or all. Tests of Rust are built before the first of them."""
    for test in tomllib.loads(TABLE.read_text())["test"]:
        name, faults = test["name"], tuple(fault for fault in test["faults"] if not chosen or fault in chosen)
        if not faults:
            continue
        if package := test.get("package"):
            program = built_tests(target)[package, test["target"]]
            yield Case(name, (program, "--exact", name), ROOT / "remoting" / package, faults)
        else:
            yield Case(name, (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", name), ROOT, faults)


def passes(case: Case, dist: Path, fault: str) -> tuple[bool, str]:
    """Runs the test. Returns whether it passed, and the last lines of what it printed."""
    environment = os.environ | {"REMOTEGPU_DIST": str(dist), FAULT: fault}
    with subprocess.Popen(
        case.command, cwd=case.folder, env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as run:  # fmt: skip
        try:
            output, _ = run.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            return False, f"does not end in {SECONDS} s"
    return run.returncode == 0 and "1 passed" in output, "\n".join(output.splitlines()[-30:])


def main() -> int:
    target, chosen = Path(sys.argv[1]).resolve(), sys.argv[2:]
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        dist = linked_dist(Path(folder))
        replace_library(dist, "client", target / "release" / "libremotegpu_client.so")
        replace_library(dist, "native", target / "release" / "libsoftgpu.so")
        for case in cases(target, chosen):
            for fault in ("", *case.faults):
                replace(dist, target / "release" / "remotegpu-worker", FAULT, fault)
                begun = time.monotonic()
                passed, output = passes(case, dist, fault)
                is_right = passed == (fault == "")
                outcome = ("passes" if passed else "noticed") if is_right else "FAILS" if fault == "" else "NOT NOTICED"
                took = time.monotonic() - begun
                print(f"{fault or 'with all rules':45} {outcome:12} {took:6.1f} s  {case.name}", flush=True)
                if not is_right:
                    wrong.append(fault or case.name)
                if not is_right and fault == "":
                    print(output, flush=True)
                    break
    print(f"==> wrong: {', '.join(wrong)}" if wrong else "==> each rule is noticed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
