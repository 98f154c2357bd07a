"""The test programs on a real GPU: directly, then through an appliance with the cuda back end. `make test-gpu`.

Ten minutes on a GPU machine without internet: `tools/gpu_bundle.sh` packs binaries and wheels (at most 64 MiB).
REMOTEGPU_RECORD=1 rewrites `golden.json`: what the real driver answered, for comparison without a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from compiled_programs import building
from support.system import PROGRAMS, ROOT, SELF_CHECKING, Appliance, appliance

pytestmark = pytest.mark.gpu
GOLDEN = Path(__file__).parent / "golden.json"


@pytest.fixture(scope="module")
def gpu() -> Iterator[Appliance]:
    with appliance(backend="cuda") as it:
        yield it


def directly(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(PROGRAMS / program)], capture_output=True, text=True, timeout=120)


# A real driver follows bad handles and ends by SIGSEGV (seen with 580.159.04); a share answers them with codes.
NOT_NATIVELY = {"bad_handles.py", "full_queue.py"}


@pytest.mark.parametrize("program", [program for program in SELF_CHECKING if program not in NOT_NATIVELY])
def test_directly_on_the_driver(program: str) -> None:
    """First without us: a program that fails here says nothing about remoting."""
    run = directly(program)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


@pytest.mark.parametrize("program", SELF_CHECKING)
def test_through_an_appliance(gpu: Appliance, program: str) -> None:
    run = gpu.run(program, share="0.1")
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


# The software GPU's two libraries are one file, so what is linked to its NVML finds NVIDIA's driver without it.
@pytest.mark.parametrize("source", [source for source in building.DRIVER_PROGRAMS if not source.startswith("nvml")])
def test_programs_of_the_driver_interface(gpu: Appliance, tmp_path: Path, source: str) -> None:
    toolkit = building.toolkit()
    if toolkit is None:
        pytest.skip("no CUDA headers in this environment")
    program = building.build(source, tmp_path, toolkit)
    directly = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert (directly.returncode, directly.stdout) == (0, "ok\n"), directly.stderr
    remotely = gpu.run(str(program), share="0.1")
    assert (remotely.returncode, remotely.stdout) == (0, "ok\n"), remotely.stderr


def test_the_share_is_a_share(gpu: Appliance) -> None:
    seen = json.loads(gpu.run("memory_seen.py", share="0.05").stdout)
    assert seen["total"] == seen["device_total"] == seen["nvml_total"]
    assert seen["total"] <= gpu.inventory()["appliances"][0]["gpus"][0]["total_bytes"] * 0.05
    assert seen["code"] == 2 and seen["allocated"] <= seen["total"]


@pytest.mark.skipif(not find_spec("numba_cuda"), reason="numba-cuda with llvmlite would not fit the bundle's 64 MiB")
def test_the_training_learns(gpu: Appliance, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    run = gpu.run(
        sys.executable, str(ROOT / "examples/01-digits/train.py"), "--json", str(results), share="0.1", timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(results.read_text())["accuracy"] > 0.95


def test_error_codes_are_the_recorded_ones() -> None:
    """The real driver's codes for NULL and freed handles, kept for the software GPU and the client to be held to."""
    codes = json.loads(directly("error_codes.py").stdout)
    if os.environ.get("REMOTEGPU_RECORD") or not GOLDEN.exists():
        GOLDEN.write_text(json.dumps(codes, indent=1, sort_keys=True) + "\n")
    assert codes == json.loads(GOLDEN.read_text())
