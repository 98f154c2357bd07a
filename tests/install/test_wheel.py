"""The wheel of `make release`, in an environment with nothing else: no compiler, no network, no clone."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.system import ROOT

# They load and install some hundred megabytes.
pytestmark = pytest.mark.timeout(900)

DIGITS = ROOT / "examples" / "01-digits" / "train.py"
# The downloads of a new user: the wheel, and all that it requires.
MOST_OF_THE_WHEEL = 20_000_000
MOST_WITH_REQUIREMENTS = 50_000_000
# Downloaded once for each set of requirements, and kept between runs.
WHEELS = ROOT / "target" / "install-wheels"
OTHER_PYTHONS = ("3.12", "3.13", "3.14")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("objdump"):
        pytest.skip("objdump is not installed: it is of the Debian package binutils")
    tool = runpy.run_path(str(ROOT / "tools" / "release.py"))
    # Built before by `make shard-chart-and-cli`, and by `make release`.
    made: Path = tool["make_wheel"](tmp_path_factory.mktemp("wheel"), ROOT / "target" / "portable")
    return made


def requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed: list[str] = project["dependencies"]
    return needed


def downloaded(name: str, wanted: list[str], python: str) -> Path:
    """Returns a folder with these packages and all that they need, for a minor version of Python."""
    folder = WHEELS / f"{name}-{python}"
    stamp = folder / "requirements.txt"
    if not stamp.exists() or stamp.read_text().splitlines() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
        command += ["--only-binary=:all:", f"--python-version={python}", f"--dest={folder}", *wanted]
        subprocess.run(command, check=True, timeout=280)
        stamp.write_text("\n".join(wanted))
    return folder


@dataclass
class Place:
    """A new virtual environment, and a PATH that has it and the coreutils, and nothing else."""

    folder: Path
    python: Path

    @property
    def environment(self) -> dict[str, str]:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return {"PATH": f"{self.python.parent}:{coreutils(self.folder)}", "HOME": str(home), "LANG": "C.UTF-8"}

    def install(self, *what: str, folders: list[Path]) -> None:
        command = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
        command += [f"--find-links={folder}" for folder in folders]
        done = subprocess.run([*command, *what], env=self.environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        program = str(self.python.parent / command[0])
        return subprocess.run(
            [program, *command[1:]],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=280,
        )  # fmt: skip


def coreutils(folder: Path) -> Path:
    """Makes a folder with the programs of coreutils alone."""
    path = folder / "coreutils"
    if not path.exists():
        path.mkdir()
        listed = subprocess.run(["dpkg", "-L", "coreutils"], capture_output=True, text=True, check=True).stdout
        for file in map(Path, listed.splitlines()):
            if file.parent.name == "bin" and file.is_file():
                (path / file.name).symlink_to(file)
    return path


def place(folder: Path, python: str) -> Place:
    folder.mkdir(exist_ok=True)
    subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True, timeout=120)
    return Place(folder, folder / "venv" / "bin" / "python")


@pytest.fixture(scope="session")
def digits(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Installs the wheel, its requirements, and those of the program."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    examples = (ROOT / "examples" / "requirements.txt").read_text().split()
    folders = [downloaded("requirements", requirements(), python), downloaded("digits", examples, python)]
    it = place(tmp_path_factory.mktemp("installed"), sys.executable)
    it.install(str(wheel), *examples, folders=folders)
    shutil.copy(DIGITS, it.folder / "digits.py")
    return it


def test_two_commands_reach_a_running_program(digits: Place) -> None:
    """The other one is `pip install`, which ran before."""
    program = ["python", "digits.py", "--epochs", "4", "--json", "result.json"]
    done = digits.run("remotegpu", "run", "-p", "0.25", "--", *program)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((digits.folder / "result.json").read_text())
    assert result["accuracy"] > 0.8
    assert "memory 2048 MiB" in done.stdout


def test_there_is_no_compiler_and_no_clone(digits: Place) -> None:
    """The environment that the other tests use has no compiler and no clone, or they would prove less."""
    found = {
        name for name in ("cc", "gcc", "cargo", "nvcc", "git") if shutil.which(name, path=digits.environment["PATH"])
    }
    assert not found
    checks = json.loads(digits.run("remotegpu", "doctor", "--json").stdout)["checks"]
    places = [check["message"] for check in checks if check["name"] in ("client library", "software GPU")]
    assert len(places) == 2
    assert all(each.startswith(str(digits.folder)) for each in places), places


def test_what_comes_along_works(digits: Place) -> None:
    smi = digits.run("remotegpu", "run", "-p", "0.25", "--", "nvidia-smi")
    assert re.search(r"0MiB / +2048MiB", smi.stdout), smi.stdout + smi.stderr
    monitor = (
        "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).total)"
    )
    native = digits.run("remotegpu", "run", "--native", "-m", "1GiB", "--", "python", "-c", monitor)
    assert native.stdout.split() == [str(1 << 30)], native.stderr
    files = (
        "from remotegpu.dashboard import page as p; "
        "print(*(f.stat().st_size for f in (p.vendored(), *p.STATIC.iterdir())))"
    )
    page = digits.run("python", "-c", files)
    assert len(page.stdout.split()) > 10 and "0" not in page.stdout.split(), page.stderr
    offload = digits.run("remotegpu", "offload", "run", "digits.py")
    assert (offload.returncode, "pip install 'remotegpu[offload]'" in offload.stderr) == (70, True)


def test_a_bounded_number_of_bytes(wheel: Path, digits: Place) -> None:
    needed = downloaded("requirements", requirements(), f"{sys.version_info.major}.{sys.version_info.minor}")
    size = wheel.stat().st_size
    everything = size + sum(file.stat().st_size for file in needed.glob("*.whl"))
    print(f"wheel {size}, with all that it requires {everything}")
    assert size < MOST_OF_THE_WHEEL
    assert everything < MOST_WITH_REQUIREMENTS


def test_the_manual_comes_along(digits: Place) -> None:
    """`man` looks next to the folders of PATH."""
    pages = [page.name for page in (digits.folder / "venv" / "share" / "man" / "man1").iterdir()]
    assert {"remotegpu.1", "remotegpu-run.1", "remotegpu-appliance-init.1", "kubectl-remotegpu.1"} <= set(pages)


def test_the_tag_says_the_oldest_glibc(wheel: Path, tmp_path: Path) -> None:
    tag = re.search(r"-py3-none-manylinux_2_(\d+)_x86_64\.whl$", wheel.name)
    assert tag is not None
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    needed = {17}
    for file in tmp_path.rglob("_dist/**/*"):
        if file.is_file() and file.read_bytes()[:4] == b"\x7fELF":
            symbols = subprocess.run(["objdump", "-T", file], capture_output=True, text=True, check=True).stdout
            needed |= {int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", symbols)}
    assert max(needed) == int(tag[1])


@pytest.mark.thorough
@pytest.mark.parametrize("version", OTHER_PYTHONS)
def test_another_python(wheel: Path, tmp_path: Path, version: str) -> None:
    """The appliance's self-test runs a kernel; nvidia-smi is the program."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    it = place(tmp_path, python)
    it.install(str(wheel), folders=[downloaded("requirements", requirements(), version)])
    done = it.run("remotegpu", "run", "-p", "0.25", "--", "nvidia-smi")
    assert re.search(r"0MiB / +2048MiB", done.stdout), done.stderr


def interpreter(version: str) -> str | None:
    """Returns an interpreter that can make virtual environments: a distribution's may be unable to."""
    homes = sorted(Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob(f"versions/{version}.*/bin/python"))
    for each in [*map(str, homes), shutil.which(f"python{version}")]:
        if each and subprocess.run([each, "-c", "import ensurepip"], capture_output=True).returncode == 0:
            return each
    return None
