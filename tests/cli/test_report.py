"""`remotegpu run --report` names what programs asked for in vain: every process under the run, killed ones included."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import CompletedProcess, run

import pytest
from support.system import PROGRAMS, REMOTEGPU

from remotegpu.cli.run import report

# Asks for a green context twice, and for a function and a table that no CUDA has; a child of it asks once more for the
# first and dies of SIGKILL.
ASKS = """
import ctypes, os, signal, subprocess, sys
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
green, address = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuGreenCtxCreate(ctypes.byref(green), None, 0, 1) == 801
if len(sys.argv) > 1:
    os.kill(os.getpid(), signal.SIGKILL)
assert cuda.cuGreenCtxCreate(ctypes.byref(green), None, 0, 1) == 801
assert cuda.cuGetProcAddress_v2(b"cuTravelInTime", ctypes.byref(address), 12040, ctypes.c_uint64(0), None) == 500
assert cuda.cuGetExportTable(ctypes.byref(address), b"sixteen bytes id") == 500
assert subprocess.run([sys.executable, sys.argv[0], "child"]).returncode == -signal.SIGKILL
"""

CLUSTERS = """
import sys
sys.path.insert(0, {programs!r})
from cu import *
start()
config = cu.CUlaunchConfig()
config.gridDimX = config.gridDimY = config.gridDimZ = 1
config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
code, _ = cu.cuOccupancyMaxPotentialClusterSize(kernels()["add"], config)
assert int(code) == 801
"""


@pytest.fixture(params=[["--native"], []], ids=["native", "local appliance"])
def where(request: pytest.FixtureRequest) -> list[str]:
    options: list[str] = request.param
    return options


def remotegpu(*arguments: str) -> CompletedProcess[str]:
    return run([REMOTEGPU, "run", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_what_is_missing_is_named_and_counted(where: list[str], tmp_path: Path) -> None:
    program, file = tmp_path / "asks.py", tmp_path / "report.json"
    program.write_text(ASKS)
    done = remotegpu(*where, "--report", "--report-file", str(file), "--", sys.executable, str(program))
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["processes"] == 2
    green, unknown, table = found["missing"]
    assert (green["name"], green["times"], green["processes"], green["error"]) == ("cuGreenCtxCreate", 3, 2, 801)
    assert green["reason"] == "green contexts are not provided"
    assert (unknown["event"], unknown["name"], unknown["times"]) == ("unknown function", "cuTravelInTime", 1)
    assert (table["event"], table["name"], table["times"]) == ("unknown table", b"sixteen bytes id".hex(), 1)
    lines = done.stderr.splitlines()
    assert any("3x cuGreenCtxCreate: green contexts are not provided (in 2 processes)" in line for line in lines)
    assert any("1x cuTravelInTime (as of CUDA 12.4)" in line for line in lines)
    assert any("use streams of the whole device" in line for line in lines)


LOADS = """
import ctypes
for name in ("libnvcuvid.so.1", "libnvidia-encode.so.1", "libnvoptix.so.1", "libnvidia-encode.so.1",
             "libnvidia-opticalflow.so.1", "libOpenCL.so.1", "libvulkan.so.1", "libEGL_nvidia.so.0"):
    try:
        ctypes.CDLL(name)
    except OSError:
        pass
"""


def test_libraries_that_do_not_exist_are_named_without_a_call_of_cuda(where: list[str], tmp_path: Path) -> None:
    """FFmpeg looks for NVENC before it uses CUDA, and says only that it cannot load the library."""
    program, file = tmp_path / "loads.py", tmp_path / "report.json"
    program.write_text(LOADS)
    done = remotegpu(*where, "--report", "--report-file", str(file), "--", sys.executable, str(program))
    assert done.returncode == 0, done.stderr
    missing = {each["name"]: each for each in json.loads(file.read_text())["missing"]}
    others = {"libnvidia-opticalflow.so.1", "libOpenCL.so.1", "libvulkan.so.1", "libEGL_nvidia.so.0"}
    assert missing.keys() - others == {"libnvcuvid.so.1", "libnvidia-encode.so.1", "libnvoptix.so.1"}
    # A machine may have a loader of OpenCL or Vulkan, which is not a driver.
    assert missing.keys() & others >= others - {"libOpenCL.so.1", "libvulkan.so.1"}
    assert missing["libnvidia-encode.so.1"]["times"] == 2
    assert missing["libnvoptix.so.1"]["reason"] == "OptiX is not provided"
    assert "NVENC, video encoding, is not provided: let the program do this work on the CPU" in done.stderr


def test_a_program_that_lacks_nothing_gets_one_line(where: list[str]) -> None:
    done = remotegpu(*where, "--report", "--", sys.executable, str(PROGRAMS / "vector_add.py"))
    expected = "remotegpu: report: 1 process used CUDA and asked for nothing that is not provided\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", expected)


def test_statistics_of_several_processes_go_to_one_folder(tmp_path: Path) -> None:
    program = str(PROGRAMS / "vector_add.py")
    twice = f"{sys.executable} {program} && {sys.executable} {program}"
    done = remotegpu("--", "env", f"REMOTEGPU_STATS={tmp_path}", "sh", "-c", twice)
    assert (done.returncode, done.stdout) == (0, "ok\nok\n"), done.stderr
    counts = [json.loads(file.read_text())["functions"] for file in tmp_path.glob("*.json")]
    assert [count["cuInit"] for count in counts] == [1, 1]


def test_what_the_appliances_driver_refuses_is_reported_too(tmp_path: Path) -> None:
    """Clusters of blocks are asked of the appliance's GPU, and the software GPU has none."""
    program, file = tmp_path / "asks.py", tmp_path / "report.json"
    program.write_text(CLUSTERS.format(programs=str(PROGRAMS)))
    done = remotegpu("--report-file", str(file), "--", sys.executable, str(program))
    assert done.returncode == 0, done.stderr
    (lack,) = json.loads(file.read_text())["missing"]
    assert (lack["name"], lack["times"], lack["reason"]) == ("cuOccupancyMaxPotentialClusterSize", 1, None)


def test_the_exit_code_stays_the_programs_own() -> None:
    done = remotegpu("--native", "--report", "--", "sh", "-c", "exit 7")
    assert (done.returncode, done.stderr) == (7, "remotegpu: report: no process used CUDA\n")


def test_what_every_runtime_looks_for_in_passing_is_nothing_missing() -> None:
    events = ["7\tstarted\t\t\t\t", "7\tunknown function\tcuSubgridX\t12000\t\tx", "7\tunknown function\t\t0\t\tx"]
    events += ["7\tunknown table\tf8cff95121468b4eb9e2fb469e7c0dd9\t\t\tlibcudart.so.13"]
    said = report.text(report.parse(events))
    assert said.endswith("provided but for what every CUDA runtime asks for and does without (3x)")
    events += [
        "8\tunknown function\tcuGLTravelInTime2\t13000\t\tlibother.so",
        "8\trefused\tcuGreenCtxCreate\t801\tgreen contexts are not provided\t",
    ]
    refused, unknown = report.parse(events).lacks
    assert (refused.name, refused.next_step.startswith("use streams")) == ("cuGreenCtxCreate", True)
    assert unknown.what == "cuGLTravelInTime2 (as of CUDA 13.0), asked for by libother.so"


@pytest.mark.parametrize(
    "event",
    [
        "refused\tcuMemCreate\t801\t\t",
        "refused value\tcuCtxGetLimit of 10\t215\t\t",
        "refused slot\t6bd5fb6c slot 3\t801\t\tlibcudart.so.11.0",
        "refused by NVML\tnvmlDeviceGetSerial\t3\t\t",
        "unknown function\tcuTravelInTime\t12040\t\tlibx.so",
        "unknown table\t00000000000000000000000000000000\t\t\tlibx.so",
    ],
)
def test_what_was_refused_is_never_nothing(event: str) -> None:
    found = report.parse(["7\tstarted\t\t\t\t", f"7\t{event}"])
    said = report.text(found)
    assert "asked for what is not provided" in said
    assert event.split("\t")[1] in said and event.split("\t")[4] in said
    (one,) = report.as_json(found)["missing"]
    assert one["event"] == event.split("\t")[0] and one["next_step"]
