"""CUPTI asks the driver for a private table; without it there is one line, and the program continues."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.system import Appliance, native

ASK = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuInit(0) == 0
table = ctypes.c_void_p(1)
records, names = "2c8e0ad80710ab4e90dd54719fe5f74b", "7cb63f9b9ca48e42a484beb66e6aed7f"
for uuid in (records, names, records):
    code = driver.cuGetExportTable(ctypes.byref(table), bytes.fromhex(uuid))
    assert code == (500 if uuid == records else 0)
assert driver.cuGetExportTable(ctypes.byref(table), bytes(range(16))) == 500
context = ctypes.c_void_p()
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print("ok")
"""


@pytest.mark.parametrize("where", ["natively", "on a share"])
def test_one_warning_says_that_kernels_are_not_recorded(remote: Appliance, tmp_path: Path, where: str) -> None:
    program = tmp_path / "ask.py"
    program.write_text(ASK)
    run: Callable[..., subprocess.CompletedProcess[str]] = native if where == "natively" else remote.run
    done = run(str(program))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert done.stderr.count("kernels are not recorded: CUPTI") == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
