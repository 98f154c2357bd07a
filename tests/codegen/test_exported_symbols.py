"""The built client exports what the table says, so that no program meets a missing symbol."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.system import DIST

EXPORTS = Path(__file__).parents[2] / "remoting" / "client" / "exports_generated"

CHECK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
missing = [name for name in sys.stdin.read().split() if not hasattr(library, name)]
sys.exit(f"not exported: {', '.join(missing)}" if missing else 0)
"""


def test_the_client_exports_every_symbol_of_the_table() -> None:
    library = DIST / "client" / "libcuda.so.1"
    if not library.exists():
        pytest.skip(f"{library} is not built")
    lines = EXPORTS.read_text().splitlines()
    names = "\n".join(line for line in lines if not line.startswith("#"))
    # In a process of its own: the library is made to stay in the process that loads it.
    done = subprocess.run(
        [sys.executable, "-c", CHECK, library], input=names, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
