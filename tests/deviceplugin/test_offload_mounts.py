"""Files that the webhook's variables name are in the folder that the device plugin mounts, and need no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from remotegpu.api.kubernetes import CLIENT_FOLDER, CONNECT_PROGRAM, PYTHON_START_FOLDER
from remotegpu.paths import find_dist
from remotegpu_deviceplugin.injection import FOLDER

PROGRAM = """
import json, sys
import colorsys
print(json.dumps(sorted(name for name in sys.modules if name.partition(".")[0] in ("grpc", "typer", "numpy"))))
"""


def mounted(path: str) -> Path:
    """Returns the file of the build that a container sees at this path."""
    return find_dist().pod / "lib" / Path(path).relative_to(CLIENT_FOLDER)


def test_the_folder_has_one_name() -> None:
    assert str(FOLDER) == CLIENT_FOLDER


def test_python_starts_armed_with_nothing_but_the_mounted_files(tmp_path: Path) -> None:
    start, connect = mounted(PYTHON_START_FOLDER), mounted(CONNECT_PROGRAM)
    assert os.access(connect, os.X_OK)
    config = tmp_path / "remotegpu.yaml"
    config.write_text("version: 1\noffload:\n  - function: nobody.uses.this\n")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(start),
        "REMOTEGPU_CONFIG": str(config),
        "REMOTEGPU_CONNECT": str(connect),
    }
    # Without site-packages: the mounted folder must contain all. Its start-up module is Python's own business.
    python = Path(sys.base_prefix, "bin", "python3")
    done = subprocess.run([python, "-s", "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[]\n"


def test_no_machine_code_is_mounted_for_python() -> None:
    """It would be for one version of Python, and images have several."""
    python = mounted(f"{CLIENT_FOLDER}/python")
    assert {"remotegpu", "cloudpickle", "yaml"} <= {path.name for path in python.iterdir()}
    assert not [path for path in python.rglob("*") if path.suffix in (".so", ".pyd")]
