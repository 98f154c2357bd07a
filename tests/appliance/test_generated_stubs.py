"""The committed stubs are those of control.proto."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = Path("remotegpu/rpc/_generated")


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / GENERATED).mkdir(parents=True)
    subprocess.run([sys.executable, ROOT / "tools" / "generate_rpc.py", tmp_path], check=True)
    written = {path.name: path.read_text() for path in (tmp_path / GENERATED).iterdir()}
    assert sorted(written) == ["control_pb2.py", "control_pb2.pyi", "control_pb2_grpc.py"]
    for name, text in written.items():
        assert (ROOT / "remoting" / GENERATED / name).read_text() == text, f"{name}: run `make generate`"
