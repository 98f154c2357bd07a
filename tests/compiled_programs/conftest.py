"""Compiles test programs once, and runs them on the software GPU directly or on a share of an appliance."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compiled_programs import building
from support import tracer
from support.system import REMOTEGPU, Appliance, appliance

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def toolkit() -> Path:
    folder = building.toolkit()
    if folder is None:
        pytest.skip("no nvcc in this environment")
    return folder


@pytest.fixture(scope="session")
def compiled(toolkit: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles a source file; a second call with the same arguments answers the first one's program."""
    folder = tmp_path_factory.mktemp("compiled_programs")
    programs: dict[tuple[str, ...], Path] = {}

    def compile_once(source: str, *options: str) -> Path:
        key = (source, *options)
        if key not in programs:
            programs[key] = building.build(source, folder, toolkit, options)
        return programs[key]

    return compile_once


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a libcuda.so.1 that counts calls on their way to the native one."""
    driver = building.native_libraries() / "libcuda.so.1"
    if not driver.exists():
        pytest.skip("the software GPU is not built (make build)")
    return tracer.build(driver, tmp_path_factory.mktemp("tracer"))


@pytest.fixture(scope="session")
def share() -> Iterator[Appliance]:
    """Natively programs meet the normal profile, so remotely the hostile one."""
    with appliance(profile="hostile") as it:
        yield it


@pytest.fixture(params=["native", "remote"])
def runner(request: pytest.FixtureRequest) -> Run:
    """Runs a command to its end: runner(program, *arguments, stdin=...)."""
    if request.param == "native":
        if not (building.native_libraries() / "libcuda.so.1").exists():
            pytest.skip("the software GPU is not built (make build)")
        environment = os.environ | {"LD_LIBRARY_PATH": os.fspath(building.native_libraries())}
        prefix = []
    else:
        if not shutil.which(REMOTEGPU):
            pytest.skip("the remotegpu command is not installed (make set-up)")
        environment = dict(os.environ)
        prefix = request.getfixturevalue("share").command("true")[:-1]

    def run(*command: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        line = prefix + [str(part) for part in command]
        return subprocess.run(
            line, check=False, input=stdin, capture_output=True, text=True, timeout=120, env=environment
        )

    return run


@pytest.fixture(scope="session")
def exported(toolkit: Path) -> list[str]:
    """The driver's functions, by the names that the installed header's internal prototypes give them."""
    # As programs built with per-thread default streams see it, which adds those variants.
    options = ["-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]
    header = os.fspath(toolkit / "include" / "cuda.h")
    listing = subprocess.run(["cc", *options, header], check=True, capture_output=True, text=True)
    return sorted(set(re.findall(r"CUresult\s+(cu\w+)\(", listing.stdout)))
