"""The removed kernel provisioner `remotegpu-provisioner`. For one release, it only names its replacement."""

from typing import Any, NoReturn

from jupyter_client.provisioning import LocalProvisioner

from remotegpu_offload.jupyter.proxy import GONE


class OffloadProvisioner(LocalProvisioner):  # type: ignore[misc]
    """Starts no kernel: raises an error that Jupyter shows."""

    async def pre_launch(self, **_: Any) -> NoReturn:
        raise RuntimeError(GONE)
