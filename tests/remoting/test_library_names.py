"""The driver's libraries are found by every name that tools look for, and are one library under all of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.system import REMOTEGPU, Appliance

LIBRARIES = {"cuInit": ("libcuda.so.1", "libcuda.so"), "nvmlInit_v2": ("libnvidia-ml.so.1", "libnvidia-ml.so")}
OPENED = """
import ctypes, sys
first, *names = sys.argv[1:]
opened = [ctypes.CDLL(name) for name in names]
function = getattr(opened[0], first)
code = function(0) if first == "cuInit" else function()
print(code, len({each._handle for each in opened}))
"""
FOUND = pytest.mark.parametrize("function", LIBRARIES)


@FOUND
def test_natively(function: str) -> None:
    command = [REMOTEGPU, "run", "--native", "--", sys.executable, "-c", OPENED, function, *LIBRARIES[function]]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "0 1\n"), run.stderr


@FOUND
@pytest.mark.parametrize("carrier", ["auto", "direct", "grpc"])
def test_on_a_share(remote: Appliance, function: str, carrier: str) -> None:
    env = {"REMOTEGPU_CARRIER": carrier}
    run = remote.run(sys.executable, "-c", OPENED, function, *LIBRARIES[function], env=env)
    assert (run.returncode, run.stdout) == (0, "0 1\n"), run.stderr
