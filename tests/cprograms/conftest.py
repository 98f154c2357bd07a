"""Compiles test programs once, and runs them on the software GPU directly or on a share of an appliance."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.system import DIST, REMOTEGPU, Appliance, appliance

SOURCES = Path(__file__).parent
Run = Callable[..., subprocess.CompletedProcess[str]]


def native_libraries() -> Path:
    """The folder of the libcuda.so.1 that native runs load."""
    return Path(os.environ.get("REMOTEGPU_NATIVE_LIB_DIR", DIST / "native"))


@pytest.fixture(scope="session")
def toolkit() -> Path:
    """CUDA's compiler from the wheels of the active environment."""
    folder = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"
    if not (folder / "bin" / "nvcc").exists():
        pytest.skip("no nvcc in this environment")
    return folder


@pytest.fixture(scope="session")
def compiled(toolkit: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles a source file; a second call with the same arguments answers the first one's program."""
    folder = tmp_path_factory.mktemp("cprograms")
    programs: dict[tuple[str, ...], Path] = {}

    def compile_once(source: str, *options: str) -> Path:
        key = (source, *options)
        if key not in programs:
            program = folder / "-".join((source.replace(".", "_"), *(option.strip("-") for option in options)))
            subprocess.run(command(source, program, options), check=True, capture_output=True, text=True)
            programs[key] = program
        return programs[key]

    def command(source: str, program: Path, options: tuple[str, ...]) -> list[str]:
        path = os.fspath(SOURCES / source)
        if source.endswith(".c"):
            library = ["-L", os.fspath(native_libraries()), "-l:libcuda.so.1", "-ldl"]
            return ["cc", "-I", os.fspath(toolkit / "include"), path, "-o", os.fspath(program), *library]
        line = [os.fspath(toolkit / "bin" / "nvcc"), "-o", os.fspath(program), path, f"-L{toolkit / 'lib'}"]
        if "--default" not in options:
            code = "sm_75" if source == "machine_code.cu" else "compute_75"
            line += ["-gencode", f"arch=compute_75,code={code}"]
        line += [option for option in options if option.startswith("-rdc")]
        if source == "per_thread.cu":
            line += ["--default-stream", "per-thread"]
        return line

    return compile_once


@pytest.fixture(scope="session")
def share() -> Iterator[Appliance]:
    """Natively programs meet the normal profile, so remotely the hostile one."""
    with appliance(profile="hostile") as it:
        yield it


@pytest.fixture(params=["native", "remote"])
def runner(request: pytest.FixtureRequest) -> Run:
    """Runs a command to its end: runner(program, *arguments, stdin=...)."""
    if request.param == "native":
        if not (native_libraries() / "libcuda.so.1").exists():
            pytest.skip("the software GPU is not built (make build)")
        environment = os.environ | {"LD_LIBRARY_PATH": os.fspath(native_libraries())}
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
