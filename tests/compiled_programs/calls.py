"""Which driver functions each program of the driver interface calls, recorded by the tracer while it checks itself.

`python tests/compiled_programs/calls.py` (`make calls`) records all of them natively and writes
`remoting/registry/calls.yaml`, which REPORT.md quotes; a test records them again and compares.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from compiled_programs import building
from support import tracer
from support.system import ROOT

TABLE = ROOT / "remoting" / "registry" / "calls.yaml"
HEADER = (
    "# The driver functions that each program of tests/compiled_programs calls while it checks itself: `make calls`.\n"
)


def recorded(program: Path, traced: Path, out: Path) -> list[str]:
    """The functions that one run called, without the suffix of per-thread variants; the run has to print `ok`."""
    driver = building.native_libraries() / "libcuda.so.1"
    environment = os.environ | tracer.environment(traced, driver, out)
    run = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
    counts: dict[str, int] = json.loads(out.read_text())
    return sorted({re.sub(r"_pt[ds][sz]$", "", name) for name, count in counts.items() if count})


def notices(program: Path, traced: Path, out: Path, function: str) -> bool:
    """Does the program fail if the function does nothing and says that it worked?"""
    driver = building.native_libraries() / "libcuda.so.1"
    environment = os.environ | tracer.environment(traced, driver, out, idle=function)
    try:
        run = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return True
    return (run.returncode, run.stdout) != (0, "ok\n")


def committed() -> dict[str, list[str]]:
    table: dict[str, list[str]] = yaml.safe_load(TABLE.read_text())
    return table


def render(calls: Mapping[str, list[str]]) -> str:
    return HEADER + yaml.safe_dump(dict(calls), width=140, default_flow_style=None)


def main() -> None:
    toolkit = building.toolkit()
    assert toolkit is not None, "no nvcc in this environment: make set-up"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        traced = tracer.build(building.native_libraries() / "libcuda.so.1", folder / "tracer")
        calls = {
            source: recorded(building.build(source, folder, toolkit), traced, folder / "calls.json")
            for source in building.DRIVER_PROGRAMS
        }
    TABLE.write_text(render(calls))


if __name__ == "__main__":
    main()
