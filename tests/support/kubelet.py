"""A stand-in for the kubelet's side of the device plugin interface: Registration, and a stream for each resource.

It does what kubelet 1.34 does: a start deletes what is in the folder, a registration is answered and then followed by a
call back, messages above 4 MiB are not taken.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from remotegpu_deviceplugin._generated import deviceplugin_pb2 as messages
from remotegpu_deviceplugin._generated import deviceplugin_pb2_grpc as services

CHECKPOINT = "kubelet_internal_checkpoint"


class Kubelet(services.RegistrationServicer):
    def __init__(self, folder: Path, refusal: str = "") -> None:
        self.folder = folder
        self.refusal = refusal
        # In the order in which they came.
        self.registrations: list[messages.RegisterRequest] = []
        self.served_before_registering: list[bool] = []
        # All that was said of a resource, as numbers of devices.
        self.heard: dict[str, list[int]] = {}
        self.devices: dict[str, list[messages.Device]] = {}
        self.ended: list[str] = []
        self._channels: dict[str, grpc.Channel] = {}
        self._server: grpc.Server | None = None

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        for path in self.folder.iterdir():
            if path.name != CHECKPOINT:
                path.unlink()
        self._server = grpc.server(ThreadPoolExecutor(4))
        services.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.folder}/kubelet.sock")
        self._server.start()

    def stop(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels = {}
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None

    def Register(  # noqa: N802
        self, request: messages.RegisterRequest, context: grpc.ServicerContext
    ) -> messages.Empty:
        self.registrations.append(request)
        self.served_before_registering.append((self.folder / request.endpoint).is_socket())
        if self.refusal:
            context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        threading.Thread(target=self._listen, args=(request,), daemon=True).start()
        return messages.Empty()

    def plugin(self, resource: str) -> services.DevicePluginStub:
        return services.DevicePluginStub(self._channels[resource])

    def _listen(self, request: messages.RegisterRequest) -> None:
        name = request.resource_name
        self._channels[name] = grpc.insecure_channel(f"unix:{self.folder / request.endpoint}")
        try:
            for message in self.plugin(name).ListAndWatch(messages.Empty()):
                self.devices[name] = list(message.devices)
                self.heard.setdefault(name, []).append(len(message.devices))
        except (grpc.RpcError, ValueError):
            self.ended.append(name)
