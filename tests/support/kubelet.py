"""A stand-in for kubelet's side of the device plugin interface: Registration, and a stream for each registration.

It behaves like kubelet 1.34. A start deletes all files in the folder. A registration is answered after kubelet has
connected to the plugin. Messages above 4 MiB are refused. When any stream of a resource ends, kubelet closes the
connection of the last registration, even if another one ended, and the resource's devices are unhealthy until the next
list (pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, `runClient`; kubernetes/kubernetes#121994).
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from remotegpu_deviceplugin._generated import deviceplugin_pb2 as messages
from remotegpu_deviceplugin._generated import deviceplugin_pb2_grpc as services

CHECKPOINT = "kubelet_internal_checkpoint"
SECONDS = 10


class Kubelet(services.RegistrationServicer):
    def __init__(self, folder: Path, refusal: str = "") -> None:
        self.folder = folder
        self.refusal = refusal
        # All registrations, in their order.
        self.registrations: list[messages.RegisterRequest] = []
        self.served_before_registering: list[bool] = []
        # The number of devices in each received list, by resource.
        self.heard: dict[str, list[int]] = {}
        self.devices: dict[str, list[messages.Device]] = {}
        # The resources whose stream ended, and those whose devices became unhealthy.
        self.ended: list[str] = []
        self.unhealthy: list[str] = []
        self._current: dict[str, grpc.Channel] = {}
        self._channels: list[grpc.Channel] = []
        self._lock = threading.Lock()
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
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None
        with self._lock:
            self._current = {}
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def Register(  # noqa: N802
        self, request: messages.RegisterRequest, context: grpc.ServicerContext
    ) -> messages.Empty:
        self.registrations.append(request)
        self.served_before_registering.append((self.folder / request.endpoint).is_socket())
        if self.refusal:
            context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        channel = grpc.insecure_channel(f"unix:{self.folder / request.endpoint}")
        services.DevicePluginStub(channel).GetDevicePluginOptions(messages.Empty(), timeout=SECONDS)
        with self._lock:
            self._current[request.resource_name] = channel
            self._channels.append(channel)
        threading.Thread(target=self._listen, args=(request.resource_name, channel), daemon=True).start()
        return messages.Empty()

    def plugin(self, resource: str) -> services.DevicePluginStub:
        """Returns a client of the plugin that kubelet calls when a pod starts."""
        return services.DevicePluginStub(self._current[resource])

    def healthy(self, resource: str) -> bool:
        return {device.health for device in self.devices.get(resource, [])} == {"Healthy"}

    def _listen(self, resource: str, channel: grpc.Channel) -> None:
        try:
            for message in services.DevicePluginStub(channel).ListAndWatch(messages.Empty()):
                self.devices[resource] = list(message.devices)
                self.heard[resource] = [*self.heard.get(resource, ()), len(message.devices)]
        except (grpc.RpcError, ValueError):
            self.ended.append(resource)
        with self._lock:
            last = self._current.pop(resource, None)
        if last is not None:
            self.unhealthy.append(resource)
            self.devices[resource] = [messages.Device(ID=each.ID) for each in self.devices.get(resource, [])]
            last.close()
