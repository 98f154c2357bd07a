"""The bundle for a GPU machine without internet, installed offline into an empty environment, runs the software GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.system import ROOT, free_port, until

# An environment is made first, which takes 10 s of CPU.
pytestmark = pytest.mark.timeout(400)

# Nothing of this environment but Python itself; no proxy, no index and no PYTHONPATH.
ALONE = {
    "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "PIP_CONFIG_FILE": os.devnull,
}

# 2,000 numbers doubled by a kernel, with what the bundle has: no NumPy.
DOUBLE = """
import array, ctypes
from cuda.bindings import driver as cu
def ok(result):
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else result[1:]
ptx = b'''.version 7.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 p) {
 .reg .u64 %d<4>; .reg .u32 %r<6>;
 ld.param.u64 %d0, [p];
 mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
 mad.lo.u32 %r3, %r0, %r1, %r2;
 mul.wide.u32 %d1, %r3, 4; add.u64 %d2, %d0, %d1;
 ld.global.u32 %r4, [%d2]; add.u32 %r5, %r4, %r4; st.global.u32 [%d2], %r5;
 ret;
}
\\0'''
ok(cu.cuInit(0))
ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(0))))))
twice = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(ptx)), b"twice"))
numbers = array.array("I", range(2000))
memory = ok(cu.cuMemAlloc(8000))
ok(cu.cuMemcpyHtoD(memory, numbers.buffer_info()[0], 8000))
ok(cu.cuLaunchKernel(twice, 20, 1, 1, 100, 1, 1, 0, 0, ((int(memory),), (ctypes.c_uint64,)), 0))
ok(cu.cuMemcpyDtoH(numbers.buffer_info()[0], memory, 8000))
assert list(numbers) == [2 * n for n in range(2000)]
print(open("/proc/self/maps").read().count("/dist/"), "ok")
"""


def done(command: list[str], environment: Mapping[str, str], timeout: float = 250) -> str:
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, str]]:
    """A Python that has what the bundle brings, and the variables to run it with."""
    place = tmp_path_factory.mktemp("bundle")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    packed = done([str(ROOT / "tools/gpu_bundle.sh"), version, str(place / "bundle")], os.environ)
    assert "MiB" in packed
    # The interpreter below this environment, without this environment's packages.
    python = str(Path(sys.base_prefix) / "bin" / f"python{version}")
    done([str(ROOT / "tools/gpu_env.sh"), str(place / "env"), str(place / "bundle"), python], ALONE)
    return place / "env" / "bin", ALONE | {"REMOTEGPU_DIST": str(place / "bundle/dist")}


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "double.py").write_text(DOUBLE)
    return str(tmp_path / "double.py")


def test_a_program_runs_natively(environment: tuple[Path, Mapping[str, str]], program: str) -> None:
    folder, variables = environment
    said = done([f"{folder}/remotegpu", "run", "--native", "--", f"{folder}/python", program], variables)
    assert said.endswith(" ok\n") and not said.startswith("0 "), said


def test_an_appliance_and_a_share(environment: tuple[Path, Mapping[str, str]], program: str) -> None:
    folder, variables = environment
    endpoint = f"127.0.0.1:{free_port()}"
    command = [f"{folder}/remotegpu", "appliance", "--backend", "software", "--listen", endpoint, "--memory", "512MiB"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as it:
        try:
            asked = [f"{folder}/remotegpu", "ls", "--appliance", endpoint]

            def ready() -> bool:
                assert it.poll() is None and it.stderr is not None, "the appliance ended"
                return (
                    subprocess.run(asked, env=variables, capture_output=True, timeout=30, check=False).returncode == 0
                )

            until(ready, 60, "the appliance answers")
            share = [f"{folder}/remotegpu", "run", "--appliance", endpoint, "-p", "0.5", "--"]
            said = done([*share, f"{folder}/python", program], variables)
            assert said.endswith(" ok\n") and not said.startswith("0 "), said
        finally:
            it.terminate()
            it.communicate(timeout=30)


def test_the_gpu_tests_find_what_they_import(environment: tuple[Path, Mapping[str, str]]) -> None:
    folder, variables = environment
    options = ["-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider", str(ROOT / "tests/gpu/test_real_gpu.py")]
    listed = done([f"{folder}/python", "-m", "pytest", "--rootdir", str(ROOT), *options], variables)
    assert "test_through_an_appliance[vector_add.py]" in listed
