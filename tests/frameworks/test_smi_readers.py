"""Unmodified GPUtil, pynvml's helper, gpustat and nvitop, from wheels of their own, on a share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from frameworks.running import PROGRAMS, cases_of
from support.system import Appliance

PROGRAM = "smi_readers.py"
VENV = Path(__file__).parents[2] / "target" / "smi-readers"
# setuptools has the distutils that GPUtil imports, which newer Pythons lack.
WHEELS = ("GPUtil==1.4.0", "gpustat==1.1.1", "nvitop==1.7.2", "pynvml==13.0.1", "setuptools<81")


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter that has the tools; the first run loads them."""
    found = VENV / "bin" / "python"
    if not (VENV / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True, capture_output=True)
        command = [str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *WHEELS]
        loaded = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        if loaded.returncode != 0:
            pytest.skip(f"the wheels cannot be loaded: {loaded.stderr.strip().splitlines()[-1:]}")
        (VENV / "complete").touch()
    return found


@pytest.mark.parametrize("case", cases_of(PROGRAM))
def test_tool_reads_the_share(share: Appliance, python: Path, case: str) -> None:
    run = share.run(str(python), str(PROGRAMS / PROGRAM), case)
    assert run.returncode == 0, run.stderr
    assert case in run.stdout.split()
