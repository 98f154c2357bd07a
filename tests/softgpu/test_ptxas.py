"""The stand-in for ptxas: what Triton asks of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.system import ROOT

PTXAS = ROOT / "remoting" / "softgpu" / "ptxas"

# As Triton: the library is loaded, then the program is asked. The second line is Triton 3.2's rule, the third 3.3's.
ASKING = """
import mmap, subprocess, sys
with open(sys.argv[2], "rb") as file:
    loaded = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    print(subprocess.run([sys.argv[1], "--version"], capture_output=True, text=True, check=True).stdout, end="")
"""


def asked_by(folder: Path, version: str) -> str:
    """The answer to a process that has loaded the library of this version of Triton."""
    (folder / "triton" / "_C").mkdir(parents=True)
    (folder / "triton" / "__init__.py").write_text(f'"""isort:skip_file"""\n__version__ = {version!r}\n\nimport os\n')
    library = folder / "triton" / "_C" / "libtriton.so"
    library.write_bytes(b"\0" * 4096)
    command = [sys.executable, "-c", ASKING, str(PTXAS), str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("version", "release"),
    [("3.2.0", "12.4"), ("3.1.0", "12.4"), ("2.3.1", "12.4"), ("3.3.1", "12.9"), ("3.5.0", "12.9"), ("3.20.0", "12.9")],
)
def test_the_version_is_one_that_the_asking_triton_takes(tmp_path: Path, version: str, release: str) -> None:
    said = asked_by(tmp_path / "a folder", version)
    # As Triton reads it.
    found = re.search(r".*release (\d+\.\d+).*", said, flags=re.MULTILINE)
    assert found is not None
    assert found[1] == release
    assert "remotegpu" in said, "its caches are apart from those of a real ptxas"


def test_another_program_is_told_the_newest() -> None:
    said = subprocess.run([PTXAS, "--version"], capture_output=True, text=True, check=True).stdout
    assert said == "Cuda compilation tools, release 12.9, remotegpu\n"


def test_ptx_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(".version 8.4\n")
    command = [PTXAS, "-lineinfo", "-v", "--gpu-name=sm_80", tmp_path / "k.ptx", "-o", tmp_path / "k.o"]
    subprocess.run([str(each) for each in command], check=True)
    assert (tmp_path / "k.o").read_text() == ".version 8.4\n"
