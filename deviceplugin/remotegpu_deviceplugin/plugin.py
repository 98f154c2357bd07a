"""The gRPC service of one resource, which the kubelet calls (device plugin API v1beta1)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection

import grpc

from remotegpu_deviceplugin._generated import deviceplugin_pb2 as messages
from remotegpu_deviceplugin._generated.deviceplugin_pb2_grpc import DevicePluginServicer
from remotegpu_deviceplugin.devices import listing

Answer = Callable[[], messages.ContainerAllocateResponse]


class Plugin(DevicePluginServicer):
    """The service for one resource. Its devices are alike: a container's mounts do not depend on its devices' ids.

    `answer` builds the mounts and variables for a container.
    """

    def __init__(self, resource: str, answer: Answer) -> None:
        self.resource = resource
        self._answer = answer
        # The number of devices; None until `advertise` is called.
        self.count: int | None = None
        self._unhealthy: frozenset[str] = frozenset()
        self._changed = asyncio.Condition()
        self._streams = 0
        self._ended = asyncio.Event()

    @property
    def watched(self) -> bool:
        """Whether a kubelet has a stream of `ListAndWatch` open."""
        return self._streams > 0

    @property
    def _now(self) -> tuple[int | None, frozenset[str]]:
        return self.count, self._unhealthy

    async def is_watched(self) -> None:
        """Waits until a kubelet has a stream of `ListAndWatch` open."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.watched)

    async def disconnected(self, seconds: float) -> None:
        """Waits until a kubelet's stream has ended, for at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    def take_disconnected(self) -> bool:
        """Returns whether a stream has ended since the last call."""
        ended = self._ended.is_set()
        self._ended.clear()
        return ended

    async def advertise(self, count: int) -> None:
        async with self._changed:
            self.count = count
            self._changed.notify_all()

    async def judge(self, unhealthy: Collection[str]) -> None:
        """Sets the ids of the devices whose GPU failed."""
        async with self._changed:
            self._unhealthy = frozenset(unhealthy)
            self._changed.notify_all()

    async def known(self) -> None:
        """Waits until `advertise` has set the number of devices."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.count is not None)

    async def GetDevicePluginOptions(
        self, request: messages.Empty, context: grpc.aio.ServicerContext[messages.Empty, messages.DevicePluginOptions]
    ) -> messages.DevicePluginOptions:
        return messages.DevicePluginOptions()

    async def ListAndWatch(
        self, request: messages.Empty, context: grpc.aio.ServicerContext[messages.Empty, messages.ListAndWatchResponse]
    ) -> AsyncIterator[messages.ListAndWatchResponse]:
        sent: tuple[int | None, frozenset[str]] = None, frozenset()
        async with self._changed:
            self._streams += 1
            self._changed.notify_all()
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._now != sent)  # noqa: B023 (asked before it changes)
                    count, unhealthy = sent = self._now
                if count is not None:
                    yield listing(count, unhealthy)
        finally:
            self._streams -= 1
            self._ended.set()

    async def Allocate(
        self,
        request: messages.AllocateRequest,
        context: grpc.aio.ServicerContext[messages.AllocateRequest, messages.AllocateResponse],
    ) -> messages.AllocateResponse:
        return messages.AllocateResponse(container_responses=[self._answer() for _ in request.container_requests])
