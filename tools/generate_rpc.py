"""Writes the stubs of this project's .proto files into the repository or a FOLDER with the same layout.

python tools/generate_rpc.py [FOLDER]
"""

import sys
from importlib import resources
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
# The .proto, the folder from which its package is imported, and the stubs' folder in it.
STUBS = (
    ("remoting/proto/control.proto", "remoting", "remotegpu/rpc/_generated"),
    ("deviceplugin/proto/deviceplugin.proto", "deviceplugin", "remotegpu_deviceplugin/_generated"),
)


def generate(root: Path) -> None:
    """Writes the stubs below `root`, at their paths in the repository."""
    include = str(resources.files("grpc_tools") / "_proto")
    for proto, imports, package in STUBS:
        file = ROOT / proto
        # The mapping gives the generated import the name of this project's package, independent of the .proto's folder.
        arguments = ["protoc", f"-I{package}={file.parent}", f"-I{include}"]
        arguments += [f"--{kind}={root / imports}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
        if protoc.main([*arguments, str(file)]) != 0:
            raise RuntimeError(f"protoc refused {proto}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
