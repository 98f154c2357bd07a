"""The small nvidia-smi, with the NVML that programs get natively and on a share."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.system import DIST

Run = Callable[..., subprocess.CompletedProcess[str]]
SMI = DIST / "bin" / "nvidia-smi"
pytestmark = pytest.mark.skipif(not SMI.exists(), reason="nvidia-smi is not built (make build)")


def test_list(runner: Run) -> None:
    run = runner(SMI, "-L")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines
    for index, line in enumerate(lines):
        assert re.fullmatch(rf"GPU {index}: .+ \(UUID: GPU-[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}\)", line)


def test_query_as_scripts_ask_it(runner: Run) -> None:
    fields = "name,memory.total,memory.used,memory.free,driver_version,compute_cap,index"
    run = runner(SMI, f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "0")
    assert run.returncode == 0, run.stderr
    name, total, used, free, _driver, capability, index = run.stdout.strip().split(", ")
    assert name
    assert int(total) > 0
    assert abs(int(total) - int(used) - int(free)) <= 2  # each is rounded
    assert re.fullmatch(r"\d+\.\d", capability)
    assert index == "0"


def test_table(runner: Run) -> None:
    run = runner(SMI)
    assert run.returncode == 0, run.stderr
    assert re.search(r"Driver Version: \S+ +CUDA Version: \d+\.\d", run.stdout)
    assert re.search(r"\d+MiB / +\d+MiB", run.stdout)
    assert {len(line) for line in run.stdout.splitlines() if line.startswith(("|", "+"))} == {91}


def test_unknown_fields_and_devices_are_refused(runner: Run) -> None:
    assert runner(SMI, "--query-gpu=colour", "--format=csv").returncode == 2
    assert runner(SMI, "-L", "-i", "77").returncode == 6


@pytest.mark.parametrize("runner", ["remote"], indirect=True)
def test_processes_of_the_lease(runner: Run, compiled: Callable[[str], Path]) -> None:
    """Processes are told apart by the appliance: natively each process has a software GPU of its own."""
    program = compiled("hold.cu")
    query = f"{SMI} --query-compute-apps=process_name,used_memory --format=csv,noheader"
    run = runner(program, query)
    assert run.returncode == 0, run.stderr
    (line,) = run.stdout.splitlines()
    assert line.startswith(str(program))  # its arguments may follow
    assert line.endswith(", 100 MiB")
    assert runner(SMI, "--query-compute-apps=pid", "--format=csv,noheader").stdout == ""
