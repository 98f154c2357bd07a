"""The kernel provisioner `remotegpu-provisioner`: a kernel that Jupyter starts runs in an acceptor.

A kernelspec asks for it:

    "metadata": {"kernel_provisioner": {"provisioner_name": "remotegpu-provisioner", "config": {"backend": "cuda"}}}
"""

import sys
from pathlib import Path
from typing import Any

from jupyter_client.provisioning import LocalProvisioner
from traitlets import Float, Unicode

from remotegpu_offload.jupyter.kernelspec import PROXY


class OffloadProvisioner(LocalProvisioner):  # type: ignore[misc]
    """Starts the proxy in the kernel's place; Jupyter's own code watches, interrupts and ends it.

    Where neither the pod nor the environment names a share, one is borrowed for as long as the kernel lives.
    """

    backend = Unicode("", config=True, help="cuda, rocm, xpu or cpu; else as remotegpu.yaml says")
    environment = Unicode("", config=True, help="Name of the appliance's environment; else the first that fits.")
    appliance = Unicode("", config=True, help="HOST:PORT to borrow a share of; else the share that is there.")
    fraction = Float(1.0, config=True, help="Which part of a GPU to borrow there.")

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """The kernelspec's command is for a local kernel: it is not run."""
        prepared: dict[str, Any] = await super().pre_launch(**kwargs)
        assert self.parent is not None
        command = [sys.executable, "-c", PROXY, "-f", self.parent.connection_file]
        command += [f"--backend={self.backend}"] if self.backend else []
        command += [f"--environment={self.environment}"] if self.environment else []
        prepared["cmd"] = [*self._borrowing(), *command]
        return prepared

    def _borrowing(self) -> list[str]:
        if not self.appliance:
            return []
        program = str(Path(sys.executable).parent / "remotegpu")
        return [program, "run", "--appliance", self.appliance, "--fraction", f"{self.fraction:g}", "--"]
