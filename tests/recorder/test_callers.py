"""A recorded program gets the same answers as without the recorder, also where they depend on the calling library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.system import DIST, REMOTEGPU

RECORDER = DIST / "trace" / "libcuda.so.1"
NATIVE, SHARE = ("--native",), ("-p", "0.25")
pytestmark = pytest.mark.skipif(not RECORDER.exists(), reason="the recorder is not built (make build)")

LIBRARY = """
int cuDeviceGetAttribute(int *, int, int);
int cuMemHostRegister_v2(void *, unsigned long, unsigned);
int cuGetProcAddress_v2(const char *, void **, int, unsigned long, int *);
int major(void) { int value = -1; int code = cuDeviceGetAttribute(&value, 75, 0); return code ? -code : value; }
int page_lock(void *at) { int code = cuMemHostRegister_v2(at, 4096, 0); return code; }
int find(void)
{
    void *at;
    int status, code = cuGetProcAddress_v2("cuTravelInTime", &at, 12000, 0, &status);
    return code;
}
"""
PROGRAM = """
import ctypes, json, mmap, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, keep = ctypes.c_void_p(), []
for call in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)):
    assert call == 0, call
answers = {}
for path in sys.argv[1:]:
    library = ctypes.CDLL(path)
    keep.append(mmap.mmap(-1, 4096))
    memory = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(keep[-1])))
    answers[path.rpartition("/")[2]] = [library.major(), library.page_lock(memory), library.find()]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One that passes for one of NVIDIA's, one that passes for NCCL, and one that is neither."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "library.c").write_text(LIBRARY)
    built = [folder / name for name in ("libcuasks.so", "libnccl_asks.so", "libasks.so")]
    for library in built:
        # Without optimisation: a call at the end of a function would become a jump.
        command = ["cc", "-O0", "-shared", "-fPIC", str(folder / "library.c"), "-o", str(library)]
        subprocess.run([*command, f"-L{DIST / 'native'}", "-l:libcuda.so.1"], check=True)
    return built


def run(folder: Path, libraries: list[Path], *options: str) -> tuple[dict[str, list[int]], set[tuple[str, str]]]:
    """Runs the program. Returns its answers, and each missing function with the library that asked for it."""
    report = folder / "report.json"
    (folder / "program.py").write_text(PROGRAM)
    command = [
        REMOTEGPU,
        "run",
        *options,
        "--report-file",
        str(report),
        "--",
        sys.executable,
        str(folder / "program.py"),
    ]
    done = subprocess.run([*command, *map(str, libraries)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    missing: list[dict[str, Any]] = json.loads(report.read_text())["missing"]
    return json.loads(done.stdout), {(one["name"], one["asked_by"]) for one in missing if one["asked_by"]}


@pytest.mark.parametrize("where", [NATIVE, SHARE], ids=["native", "share"])
def test_answers_that_depend_on_the_caller_are_the_same_with_the_recorder(
    tmp_path: Path, libraries: list[Path], where: tuple[str, ...]
) -> None:
    answers, asked = run(tmp_path, libraries, *where)
    assert answers["libasks.so"] == [8, 0, 0]
    assert answers["libcuasks.so"] == [13, 0, 0]
    assert answers["libnccl_asks.so"] == [13, 801, 0]
    assert asked == {("cuTravelInTime", library.name) for library in libraries}
    assert run(tmp_path, libraries, *where, "--trace", str(tmp_path / "trace")) == (answers, asked)
    assert (tmp_path / "trace").stat().st_size > 1000
