"""`remotegpu offload explain` of a program that a test writes down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.system import REMOTEGPU

_SECONDS = 110


def explain(folder: Path, program: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run it in this folder by this interpreter; what it printed, and the report, empty if there is none."""
    script = folder / "program.py"
    script.write_text(program)
    command = [REMOTEGPU, "offload", "explain", "--json", "--python", sys.executable, str(script), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    start = done.stdout.find("{\n")
    return done, json.loads(done.stdout[start:]) if start >= 0 else {}
