"""The kernelspec by which Jupyter offers a kernel in an acceptor."""

import json
import sys
from pathlib import Path
from typing import Any, Final

# Not by `-m`: the session would take the proxy for the user's program, and look for its package here.
PROXY: Final = "import sys; from remotegpu_offload.jupyter.proxy import main; sys.exit(main())"
PROVISIONER: Final = "remotegpu-provisioner"


def kernelspec(display_name: str, **config: Any) -> dict[str, Any]:
    """The content of kernel.json. `config` are the provisioner's settings; those that say nothing are left out."""
    given = {name: value for name, value in config.items() if value}
    return {
        "argv": [sys.executable, "-c", PROXY, "-f", "{connection_file}"],
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"kernel_provisioner": {"provisioner_name": PROVISIONER, "config": given}},
    }


def install(folder: Path, name: str, spec: dict[str, Any]) -> Path:
    """Write it where Jupyter looks for kernels: below `folder`, Jupyter's data folder. Raises OSError."""
    place = folder / "kernels" / name
    place.mkdir(parents=True, exist_ok=True)
    file = place / "kernel.json"
    file.write_text(json.dumps(spec, indent=1) + "\n")
    return file
