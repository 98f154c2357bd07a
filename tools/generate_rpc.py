"""Write the Python stubs of control.proto: `python tools/generate_rpc.py [FOLDER]`, FOLDER stands for remoting/."""

import sys
from importlib import resources
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

REMOTING = Path(__file__).resolve().parents[1] / "remoting"


def generate(root: Path) -> None:
    """Write the stubs under `root`, the folder that contains the package `remotegpu`."""
    include = str(resources.files("grpc_tools") / "_proto")
    # The mapping makes the generated import name our package, wherever the .proto lies.
    arguments = ["protoc", f"-Iremotegpu/rpc/_generated={REMOTING / 'proto'}", f"-I{include}"]
    arguments += [f"--{kind}={root}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    if protoc.main([*arguments, str(REMOTING / "proto" / "control.proto")]) != 0:
        raise RuntimeError("protoc refused control.proto")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else REMOTING)
