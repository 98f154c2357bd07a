"""Packages that `make build` prepares for other interpreters: they need only the standard library besides
themselves."""

import json
import subprocess
import sys

import pytest
from support.system import DIST

_IMPORTED = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
files = {m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)}
print(json.dumps(sorted(files)))
"""


@pytest.mark.parametrize("folder", ["python", "pod/lib/python"])
def test_the_staged_package_is_whole(folder: str) -> None:
    modules = (
        "remotegpu_offload.client.session",
        "remotegpu_offload.acceptor.session",
        "remotegpu_offload.acceptor.zygote",
        "remotegpu_offload.launch",
        "cloudpickle",
        "yaml",
    )
    # Isolated and without site-packages.
    command = [sys.executable, "-I", "-S", "-c", _IMPORTED, str(DIST / folder), *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not [
        path
        for path in json.loads(done.stdout)
        if "site-packages" in path or (path.endswith((".so", ".pyd")) and str(DIST) in path)
    ]
    assert not list((DIST / folder).rglob("*.so"))


def test_pods_have_the_program_that_connects() -> None:
    done = subprocess.run(
        [DIST / "pod" / "lib" / "bin" / "remotegpu-connect", "--help"], capture_output=True, text=True, check=True
    )
    assert "--environment NAME" in done.stdout
    # Without its end of a session it says so, as a line of JSON.
    failed = subprocess.run(
        [DIST / "bin" / "remotegpu-connect"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1 and json.loads(failed.stdout)["kind"] == "settings"
    assert "is started by the program" in json.loads(failed.stdout)["error"]
