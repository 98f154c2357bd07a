"""`remotegpu.offload`, the old name of `remotegpu_offload`, says how it is called now, for one release."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from offload_programs import PATIENCE
from support.system import DIST

import remotegpu


@pytest.mark.parametrize("line", ["import remotegpu.offload", "from remotegpu.offload.config import load"])
def test_an_import_says_the_new_name(line: str) -> None:
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode != 0 and "ImportError: remotegpu.offload is called remotegpu_offload" in done.stderr


@pytest.mark.parametrize("package", [Path(remotegpu.__file__).parent, DIST / "pod" / "lib" / "python" / "remotegpu"])
def test_a_path_that_names_the_old_folder_says_the_new_one(package: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(package / "offload" / "sitecustomize")}
    command = [sys.executable, "-c", "print('on')"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "on\n") and "remotegpu_offload/sitecustomize" in done.stderr
