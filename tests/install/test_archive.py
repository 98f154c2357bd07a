"""The archive of `make release`, where there is no Python and nothing on PATH."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.system import ROOT, Appliance, appliance

pytestmark = pytest.mark.timeout(300)

MOST = 8_000_000
# Built before by `make shard-chart-and-cli`, and by `make release`.
PORTABLE = ROOT / "target" / "portable"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("strip"):
        pytest.skip("strip is not installed: it is of the Debian package binutils")
    made: Path = runpy.run_path(str(ROOT / "tools" / "release.py"))["make_archive"](
        tmp_path_factory.mktemp("archive"), PORTABLE
    )
    return made


@pytest.fixture(scope="module")
def unpacked(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (only,) = folder.iterdir()
    return only


@pytest.fixture(scope="module")
def there() -> Iterator[Appliance]:
    with appliance() as it:
        yield it


def run(unpacked: Path, there: Appliance, *command: str) -> subprocess.CompletedProcess[str]:
    """With an environment that has an empty PATH and nothing else."""
    words = [str(unpacked / "bin" / "remotegpu-run"), "-a", there.endpoint, "-p", "0.25", "--", *command]
    return subprocess.run(words, env={"PATH": ""}, cwd=unpacked, capture_output=True, text=True, timeout=120)


def test_a_program_runs_on_a_share(unpacked: Path, there: Appliance, tmp_path: Path) -> None:
    """The program loads libcuda.so.1 by its name, and it stands nowhere near the archive."""
    program = shutil.copy(PORTABLE / "bin" / "remotegpu-bench", tmp_path / "program")
    done = run(unpacked, there, str(program), "--quick")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    without = subprocess.run([str(program), "--quick"], env={"PATH": ""}, capture_output=True, text=True, timeout=60)
    assert without.returncode != 0, "it found a driver that is not the archive's"
    assert there.leased_bytes() == 0


@pytest.mark.parametrize("name", ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"])
def test_a_library_is_found_by_each_of_its_names(unpacked: Path, there: Appliance, name: str) -> None:
    opens = f"import ctypes; print(ctypes.CDLL('{name}').{'cuInit(0)' if 'cuda' in name else 'nvmlInit_v2()'})"
    done = run(unpacked, there, sys.executable, "-c", opens)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_nvidia_smi_shows_the_share(unpacked: Path, there: Appliance) -> None:
    done = run(unpacked, there, "nvidia-smi")
    assert re.search(r"0MiB / +512MiB", done.stdout), done.stdout + done.stderr


def test_a_bounded_number_of_bytes(archive: Path) -> None:
    print(f"archive {archive.stat().st_size}")
    assert archive.stat().st_size < MOST


def test_the_manual_comes_along(unpacked: Path) -> None:
    (page,) = (unpacked / "share" / "man" / "man1").iterdir()
    assert page.name == "remotegpu-run.1"
