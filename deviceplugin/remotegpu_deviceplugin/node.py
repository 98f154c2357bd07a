"""The answers to the kubelet: the devices that this node advertises, and the mounts for its containers."""

import logging
from pathlib import Path
from typing import Final

from remotegpu.api.kubernetes import CLIENT, LOCAL_SOCKETS, MILLI
from remotegpu_deviceplugin import memory
from remotegpu_deviceplugin._generated.deviceplugin_pb2 import ContainerAllocateResponse
from remotegpu_deviceplugin.devices import APPLIANCES, CLIENTS, MOST_DEVICES, Pools, fitting
from remotegpu_deviceplugin.health import Devices
from remotegpu_deviceplugin.injection import answer, answer_to_appliance
from remotegpu_deviceplugin.plugin import Plugin

# The file with the pools' figures (see `memory`), in the folder of the client's files.
MEMORY: Final = "pools.json"

_log = logging.getLogger(__name__)


class Node:
    def __init__(self, files: Path, local: Path | None, kept: Path) -> None:
        self._files = files
        self._local = local
        self._kept = kept
        self._known: Pools | None = None
        self._milli, self._client = (Plugin(resource, self._answer) for resource in (MILLI, CLIENT))
        self._sockets = Plugin(LOCAL_SOCKETS, lambda: answer_to_appliance(local))

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        return self._milli, self._client, self._sockets

    async def start(self) -> None:
        await self._client.advertise(CLIENTS)
        await self._sockets.advertise(APPLIANCES)
        if (known := memory.recall(self._kept)) is not None:
            await self._advertise(known)

    async def learn(self, found: Pools) -> None:
        known = found.since(self._known)
        if known != self._known:
            memory.remember(self._kept, known)
            await self._advertise(known)

    async def judge(self, unhealthy: Devices) -> None:
        for plugin in self.plugins:
            await plugin.judge(unhealthy.get(plugin.resource, ()))

    async def _advertise(self, known: Pools) -> None:
        self._known = known
        count = fitting(known.wanted)
        _log.info("the pools have %s thousandths of a GPU, this node advertises %s", known.milli, count)
        if count < known.wanted:
            _log.warning(
                "the kubelet takes at most %s devices in one message, so this node advertises %s of %s instead of %s; "
                "it limits only what the pods of this one node use together",
                MOST_DEVICES, count, MILLI, known.wanted,
            )  # fmt: skip
        await self._milli.advertise(count)

    def _answer(self) -> ContainerAllocateResponse:
        # While no pool is known, no pod has a share, and the value of `keep_ptx` makes no difference.
        return answer(self._files, self._local, keep_ptx=self._known is None or self._known.software)
