"""Registration of plugins with the kubelet of this node, which forgets all plugins when it restarts."""

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

# The interval for checking two socket files: a kubelet that starts deletes all sockets in its folder and makes its own
# socket again.
_LOOK_SECONDS: Final = 0.5
_CALL_SECONDS: Final = 5
# The number of checks without a stream after which a plugin registers again. A kubelet that accepted a registration
# opens the stream at once.
_LOOKS_WITHOUT_STREAM: Final = 10

_log = logging.getLogger(__name__)


class Endpoint:
    """Serves a plugin on a socket, and keeps the plugin registered with the kubelet until `hold` is cancelled."""

    def __init__(self, plugin: Plugin, instance: str, folder: Path = FOLDER) -> None:
        """Sets the socket's path. `instance` is unique for this process: two plugins serve a node during an update."""
        self._plugin = plugin
        self._name = plugin.resource.replace("/", "-")
        self._socket = folder / f"{self._name}-{instance}.sock"
        self._kubelet = folder / SOCKET
        self._server: grpc.aio.Server | None = None
        # The identity of the kubelet that accepted the registration.
        self._registered: tuple[int, int] | None = None
        # The number of checks since a kubelet last had a stream open.
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
                    # Without this pause two plugins that a kubelet disconnects in turn would race.
                    await asyncio.sleep(_LOOK_SECONDS)
                else:
                    await self._plugin.disconnected(_LOOK_SECONDS)
        finally:
            await self._stop()

    def leave(self) -> None:
        """Deletes the socket's file. Open connections stay open."""
        self._socket.unlink(missing_ok=True)

    async def _look(self) -> bool:
        """Restores the socket and the registration if one is missing. Returns whether the plugin was registered
        again."""
        if self._server is None or not self._socket.exists():
            await self._serve()
        kubelet = _identity(self._kubelet)
        if self._plugin.take_disconnected():
            # The end of another plugin's stream also disconnects this plugin: see handover.py.
            self._registered = None
        self._unwatched = 0 if self._plugin.watched else self._unwatched + 1
        if kubelet is None or (kubelet == self._registered and self._unwatched <= _LOOKS_WITHOUT_STREAM):
            return False
        await self.register()
        self._registered, self._unwatched, self._complaint = kubelet, 0, ""
        return True

    async def _serve(self) -> None:
        """Starts the server. Called before the registration, because the kubelet connects back at once."""
        await self._stop()
        server = grpc.aio.server()
        add_DevicePluginServicer_to_server(self._plugin, server)
        server.add_insecure_port(f"unix:{self._socket}")
        await server.start()
        self._server, self._registered = server, None

    async def register(self) -> None:
        """Registers the plugin: the kubelet sends requests to it from then on. Raises AioRpcError without an answer."""
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
        """Logs the error, unless the last logged error had the same reason. Checks are frequent."""
        reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
        if reason != self._complaint:
            _log.error(
                "%s is not registered: %s; is this node's kubelet running and its folder %s mounted? Trying again",
                self._plugin.resource, reason, self._socket.parent,
            )  # fmt: skip
            self._complaint = reason or ""


def _identity(socket: Path) -> tuple[int, int] | None:
    """Returns the socket's inode and change time, or None if there is no socket. Every kubelet uses the same path."""
    try:
        found = socket.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns
