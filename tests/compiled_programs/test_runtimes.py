"""Each version of the CUDA runtime that can be had, since each finds the driver and loads modules in its own way.

docs/support-matrix.md names these versions. The wheels (1 to 3 MB each) are fetched once, into target/runtimes.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.system import ROOT

Run = Callable[..., subprocess.CompletedProcess[str]]

# The oldest and the newest of each release of CUDA that has a wheel.
VERSIONS = {
    "nvidia-cuda-runtime-cu11": ["11.7.99", "11.8.89"],
    "nvidia-cuda-runtime-cu12": [
        "12.0.107", "12.1.105", "12.2.140", "12.3.101", "12.4.127", "12.5.82", "12.6.77", "12.8.90", "12.9.79",
    ],
    "nvidia-cuda-runtime": ["13.0.48", "13.1.80", "13.2.86", "13.3.29", "13.4.92", "13.5.37"],
}  # fmt: skip


def fetched(package: str, version: str) -> Path:
    """The shared library of a version, from its wheel."""
    folder = ROOT / "target" / "runtimes" / version
    if not list(folder.rglob("libcudart.so.*")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--dest", str(folder), f"{package}=={version}"], check=True)
        for wheel in folder.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(folder)
            wheel.unlink()
    (library,) = folder.rglob("libcudart.so.*")
    return library


@pytest.mark.parametrize(("package", "version"), [(p, v) for p, versions in VERSIONS.items() for v in versions])
def test_a_runtime_loads_and_launches(runner: Run, compiled: Callable[[str], Path], package: str, version: str) -> None:
    """Bytes are moved, and kernels of a whole and of a linked fat binary write what they should."""
    run = runner(compiled("start_runtime.c"), fetched(package, version))
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
