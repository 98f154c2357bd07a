"""The frameworks' comparison on the software GPU: its measurements, its verdicts, and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_frameworks import PROGRAMS, Outcome, Row, judge, measure, needs, table
from support.system import ROOT

ONE, OTHER = Outcome(("0x1.0p+0", "0x1.8p+0"), 1.0), Outcome(("0x1.0p+0", "0x1.9p+0"), 1.0)
NEAR = Outcome(("0x1.0p+0", "0x1.8000000000001p+0"), 1.0)
BROKEN = Outcome(error="exit code 1: out of luck")


# The sum of a kernel's results.
RIGHT = """
import json
import numpy as np
from cu import cu, download, kernels, launch, ok, start, u32, u64, upload
start()
a = np.random.default_rng(1).random(1000, np.float32)
given, out = upload(a), ok(cu.cuMemAlloc(4000))
launch(kernels()["add"], 4, 256, [u64(int(given)), u64(int(given)), u64(int(out)), u32(1000)])
print(json.dumps({"losses": [float(download(out, 1000, np.float32).sum()).hex()], "seconds": 0.5}))
"""

# Prints whose driver it uses: natively the software GPU's.
WRONG = """
import ctypes, json
ctypes.CDLL("libcuda.so.1").cuInit(0)
native = "/native/libcuda" in open("/proc/self/maps").read()
print(json.dumps({"losses": [float(native).hex()], "seconds": 0.5}))
"""


@pytest.mark.parametrize(
    ("native", "shares", "verdict"),
    [
        ([ONE, ONE], [ONE, ONE, ONE], "equal"),
        ([ONE, ONE], [ONE, NEAR, ONE], "differs: 2 losses for 2, from step 1 on"),
        ([ONE, ONE], [ONE, Outcome(ONE.losses[:1], 1.0)], "differs: 1 losses for 2, from step 0 on"),
        ([ONE, NEAR], [NEAR, ONE, NEAR], "close"),
        ([ONE, NEAR], [ONE, OTHER, ONE], "differs: further from a native run than 0.01, as two native runs are not"),
        ([ONE, BROKEN], [ONE], "failed natively: exit code 1: out of luck"),
        ([ONE, ONE], [ONE, BROKEN], "failed on a share: exit code 1: out of luck"),
        ([ONE, ONE], [Outcome()], "failed on a share: it printed no losses"),
    ],
)
def test_shares_are_held_to_the_native_runs(native: list[Outcome], shares: list[Outcome], verdict: str) -> None:
    assert judge(native, shares, 0.01) == verdict
    assert Row("x", verdict).good == (verdict in {"equal", "close"})


def test_what_this_machine_lacks_is_not_run(tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text("# needs: no_such_framework, json\n")

    def forbidden(_: object) -> Outcome:
        raise AssertionError("it was run")

    row = measure(program, forbidden, lambda _: forbidden, software=False)
    assert row.verdict == "not run: no no_such_framework here" and row.good
    program.write_text("# needs: json\n# machine code only\n")
    assert measure(program, forbidden, lambda _: forbidden, software=True).verdict.startswith("not run: the software")


def test_the_table_shows_times_as_ratios() -> None:
    lines = table([Row("quick", "equal", 2.0, 3.0, (4.0, 5.0)), Row("absent", "not run: no x here")]).splitlines()
    assert lines[1].split() == ["quick", "2.000", "1.50", "2.00", "2.50", "equal"]
    assert lines[2].split() == ["absent", "-", "-", "-", "not", "run:", "no", "x", "here"]


def test_every_program_says_what_it_needs() -> None:
    assert {program.stem for program in PROGRAMS.glob("*.py") if needs(program)} >= {"torch_resnet", "jax_training"}


@pytest.mark.thorough
def test_the_measurements_run_on_the_software_gpu() -> None:
    """The next session finds no data of the last one: the appliance zeroes memory before granting it."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("gpu_measure.py")],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests"), "REMOTEGPU_TEST_BACKEND": "software"},
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["on a share"]["pattern words left"] == {"freed": 0, "kept": 0}
    assert all(int(address, 16) for way in found.values() for address in way["addresses"])


@pytest.mark.thorough
def test_it_runs_on_the_software_gpu_and_tells_a_wrong_share(tmp_path: Path) -> None:
    """One program whose sums are right everywhere, one that sees that it is remote, and one that fails."""
    right, wrong, broken = (tmp_path / f"{name}.py" for name in ("right", "wrong", "broken"))
    right.write_text(f"import sys\nsys.path.insert(0, {str(ROOT / 'tests/programs')!r})\n{RIGHT}")
    wrong.write_text(WRONG)
    broken.write_text("raise SystemExit('no luck')\n")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("gpu_frameworks.py"), right, wrong, broken],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests"), "REMOTEGPU_TEST_BACKEND": "software"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    verdicts = dict(line.split(": ", 1) for line in done.stdout.splitlines()[:3])
    assert verdicts["right"] == "equal", done.stdout
    assert verdicts["wrong"].startswith("differs"), done.stdout
    assert verdicts["broken"] == "failed natively: exit code 1: no luck", done.stdout
