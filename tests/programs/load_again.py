"""Loads and unloads the same 100 KB of PTX, as often as it is told to."""

import pathlib
import sys

from cu import cu, ok, start

start()
text = (pathlib.Path(__file__).parent / "kernels.ptx").read_bytes() + b"\n// comment" * 10_000
for _ in range(int(sys.argv[1])):
    ok(cu.cuModuleUnload(ok(cu.cuModuleLoadData(text + b"\0"))))
