"""The kubelet of this node: it learns of a plugin by its registration, and forgets every plugin when it starts."""

import asyncio
import logging
from pathlib import Path
from typing import Final

import grpc

from remotegpu_deviceplugin._generated import deviceplugin_pb2 as messages
from remotegpu_deviceplugin._generated.deviceplugin_pb2_grpc import (
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from remotegpu_deviceplugin.handover import remove_dead
from remotegpu_deviceplugin.plugin import Plugin

FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
SOCKET: Final = "kubelet.sock"
VERSION: Final = "v1beta1"

# A kubelet that starts deletes every socket in its folder and makes its own again: two looks a second, at two files.
_LOOK_SECONDS: Final = 0.5
_CALL_SECONDS: Final = 5
# A kubelet opens the stream at once when it has accepted a registration.
_LOOKS_WITHOUT_STREAM: Final = 10

_log = logging.getLogger(__name__)


class Endpoint:
    """A plugin's socket and its registration, held up until cancelled."""

    def __init__(self, plugin: Plugin, instance: str, folder: Path = FOLDER) -> None:
        """`instance`: a word of this process alone, because two plugins serve one node while one replaces the other."""
        self._plugin = plugin
        self._name = plugin.resource.replace("/", "-")
        self._socket = folder / f"{self._name}-{instance}.sock"
        self._kubelet = folder / SOCKET
        self._server: grpc.aio.Server | None = None
        # The kubelet that accepted the registration, and for how many looks it has not listened since.
        self._registered: tuple[int, int] | None = None
        self._unwatched = 0
        self._complaint = ""

    async def hold(self) -> None:
        await self._plugin.known()
        remove_dead(self._socket.parent.glob(f"{self._name}*.sock"))
        try:
            while True:
                registered = False
                try:
                    registered = await self._look()
                except (OSError, RuntimeError, grpc.aio.AioRpcError) as error:
                    self._complain(error)
                if registered:
                    # Two plugins that a kubelet disconnects in turn must not race.
                    await asyncio.sleep(_LOOK_SECONDS)
                else:
                    await self._plugin.disconnected(_LOOK_SECONDS)
        finally:
            await self._stop()

    def leave(self) -> None:
        """Take the socket's name away; connections stay."""
        self._socket.unlink(missing_ok=True)

    async def _look(self) -> bool:
        """Whether it had to register."""
        if self._server is None or not self._socket.exists():
            await self._serve()
        kubelet = _identity(self._kubelet)
        if self._plugin.take_disconnected():
            # The end of another plugin's stream is one too: see handover.py.
            self._registered = None
        self._unwatched = 0 if self._plugin.watched else self._unwatched + 1
        if kubelet is None or (kubelet == self._registered and self._unwatched <= _LOOKS_WITHOUT_STREAM):
            return False
        await self.register()
        self._registered, self._unwatched, self._complaint = kubelet, 0, ""
        return True

    async def _serve(self) -> None:
        """Before registering: the kubelet calls back at once."""
        await self._stop()
        server = grpc.aio.server()
        add_DevicePluginServicer_to_server(self._plugin, server)
        server.add_insecure_port(f"unix:{self._socket}")
        await server.start()
        self._server, self._registered = server, None

    async def register(self) -> None:
        """The kubelet asks this plugin from then on. AioRpcError if it does not answer."""
        request = messages.RegisterRequest(
            version=VERSION, endpoint=self._socket.name, resource_name=self._plugin.resource
        )
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}") as channel:
            await RegistrationStub(channel).Register(request, timeout=_CALL_SECONDS)
        _log.info("%s is registered with the kubelet", self._plugin.resource)

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self.leave()

    def _complain(self, error: Exception) -> None:
        """Once for each reason: the next look is soon."""
        reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
        if reason != self._complaint:
            _log.error(
                "%s is not registered: %s; is this node's kubelet running and its folder %s mounted? Trying again",
                self._plugin.resource, reason, self._socket.parent,
            )  # fmt: skip
            self._complaint = reason or ""


def _identity(socket: Path) -> tuple[int, int] | None:
    """Which socket this is; a path says nothing, for every kubelet uses the same."""
    try:
        found = socket.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns
