"""A program that was linked with nvJitLink is told that the software GPU has nothing of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from compiled_programs.building import toolkit
from support.system import REMOTEGPU

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
