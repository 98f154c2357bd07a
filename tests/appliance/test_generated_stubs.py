"""The committed stubs are those of our .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = {
    "remoting/remotegpu/rpc/_generated": "control",
    "deviceplugin/remotegpu_deviceplugin/_generated": "deviceplugin",
}


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    for folder in GENERATED:
        (tmp_path / folder).mkdir(parents=True)
    subprocess.run([sys.executable, ROOT / "tools" / "generate_rpc.py", tmp_path], check=True)
    for folder, name in GENERATED.items():
        written = {path.name: path.read_text() for path in (tmp_path / folder).iterdir()}
        assert sorted(written) == [f"{name}_pb2.py", f"{name}_pb2.pyi", f"{name}_pb2_grpc.py"]
        for file, text in written.items():
            assert (ROOT / folder / file).read_text() == text, f"{file}: run `make generate`"
