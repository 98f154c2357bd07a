"""Compilers that make machine code: nvJitLink is refused, and NVRTC gives PTX, where the GPU executes only that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compiled_programs.building import toolkit
from support.system import DIST, REMOTEGPU

PROGRAM = """
#include <nvJitLink.h>
#include <stdio.h>
int main(void)
{
    unsigned major, minor;
    nvJitLinkHandle handle;
    const char *options[] = {"-lto", "-arch=sm_80"};
    int version = nvJitLinkVersion(&major, &minor), made = nvJitLinkCreate(&handle, 2, options);
    printf("%d %d\\n", version, made);
    return 0;
}
"""


def test_nvjitlink_is_refused_in_one_line(tmp_path: Path) -> None:
    kit = toolkit()
    if kit is None:
        pytest.skip("no nvcc wheels")
    (tmp_path / "link.c").write_text(PROGRAM)
    program, library = tmp_path / "link", kit / "lib" / "libnvJitLink.so.13"
    command = ["cc", "-I", str(kit / "include"), str(tmp_path / "link.c"), "-o", str(program), str(library)]
    subprocess.run([*command, f"-Wl,-rpath,{kit / 'lib'}", "-Wl,--allow-shlib-undefined"], check=True)
    real = subprocess.run([program], capture_output=True, text=True, check=True)
    assert real.stdout == "0 0\n", real.stderr
    run = subprocess.run([REMOTEGPU, "run", "--native", "--", str(program)], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "6 6\n"), run.stderr
    assert run.stderr.count("nvJitLink (link-time optimisation) is not provided") == 1, run.stderr


@pytest.fixture(scope="module")
def nvrtc_cubin(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The program, and the path of the real NVRTC."""
    kit = toolkit()
    if kit is None:
        pytest.skip("no nvcc wheels")
    program, library = tmp_path_factory.mktemp("nvrtc") / "nvrtc_cubin", kit / "lib" / "libnvrtc.so.13"
    source = Path(__file__).parent / "programs" / "nvrtc_cubin.c"
    libraries = [library, DIST / "native" / "libcuda.so.1", f"-Wl,-rpath,{kit / 'lib'}", "-Wl,--allow-shlib-undefined"]
    command = ["cc", "-I", kit / "include", source, "-o", program, *libraries, "-ldl"]
    subprocess.run([str(each) for each in command], check=True)
    return [str(program), str(library)]


WAYS = ("linked", "by its name", "after the real one")


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("where", [("--native",), ("-p", "0.25")], ids=["native", "share"])
def test_machine_code_of_nvrtc_is_ptx_for_a_software_gpu(nvrtc_cubin: list[str], where: tuple[str], how: str) -> None:
    program, library = nvrtc_cubin
    command = [REMOTEGPU, "run", *where, "--", program, how, library]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "apart: an image\ncompute_80: 0 bytes\njoined: PTX\n2 4 6 8\n", done.stderr


def test_machine_code_of_nvrtc_stays_where_the_gpu_is_another(nvrtc_cubin: list[str]) -> None:
    program, library = nvrtc_cubin
    for where in (["--native"], []):
        command = [REMOTEGPU, "run", *where, "--profile", "null-h100", "--", program, "by its name", library]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert "joined: machine code\n" in done.stdout, done.stdout + done.stderr


def test_an_nvrtc_that_is_not_there_is_one_line(nvrtc_cubin: list[str], tmp_path: Path) -> None:
    """And an error of NVRTC, instead of a crash."""
    script = tmp_path / "absent.py"
    script.write_text(
        "import ctypes\n"
        "nvrtc = ctypes.CDLL('libnvrtc.so.12')\n"
        "nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p\n"
        "code = nvrtc.nvrtcVersion(ctypes.byref(ctypes.c_int()), ctypes.byref(ctypes.c_int()))\n"
        "print(code, nvrtc.nvrtcGetErrorString(code).decode())\n"
    )
    run = subprocess.run(
        [REMOTEGPU, "run", "--native", "--", "/usr/bin/env", "python3", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout == "11 NVRTC_ERROR_INTERNAL_ERROR\n", run.stderr
    assert run.stderr.count("libnvrtc.so.12 is not to be found; install NVRTC") == 1, run.stderr


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("version", ["12", "13"])
def test_a_stand_in_finds_the_version_that_is_installed(tmp_path: Path, version: str, copies: int) -> None:
    """A program that asks for no version gets the first one; that of a pod may have the stand-ins of a wheel, too."""
    if toolkit() is None:
        pytest.skip("no nvcc wheels")
    own = DIST / "native" / "stand-ins" / f"libnvrtc.so.{version}"
    further = [shutil.copy(own, tmp_path / own.name)] if copies == 2 else []
    program = (
        "from cuda.bindings import nvrtc; error, found = nvrtc.nvrtcGetSupportedArchs(); print(int(error), 80 in found)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"LD_PRELOAD": ":".join(map(str, [own, *further]))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "0 True\n", done.stderr
