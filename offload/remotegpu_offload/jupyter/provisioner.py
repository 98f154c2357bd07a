"""The kernel provisioner `remotegpu-provisioner` of the release before, which only says what is there in its place."""

from typing import Any, NoReturn

from jupyter_client.provisioning import LocalProvisioner

from remotegpu_offload.jupyter.proxy import GONE


class OffloadProvisioner(LocalProvisioner):  # type: ignore[misc]
    """Starts no kernel. Jupyter shows the error."""

    async def pre_launch(self, **_: Any) -> NoReturn:
        raise RuntimeError(GONE)
