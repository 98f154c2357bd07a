"""One resource, as the kubelet asks for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection

import grpc

from remotegpu_deviceplugin._generated import deviceplugin_pb2 as messages
from remotegpu_deviceplugin._generated.deviceplugin_pb2_grpc import DevicePluginServicer
from remotegpu_deviceplugin.devices import listing

Answer = Callable[[], messages.ContainerAllocateResponse]


class Plugin(DevicePluginServicer):
    """Counts devices that are alike until a pod has them; what a container is given does not depend on which it has."""

    def __init__(self, resource: str, answer: Answer) -> None:
        self.resource = resource
        self._answer = answer
        # None: not known yet.
        self.count: int | None = None
        self._unhealthy: frozenset[str] = frozenset()
        self._changed = asyncio.Condition()
        self._streams = 0
        self._ended = asyncio.Event()

    @property
    def watched(self) -> bool:
        """A kubelet listens."""
        return self._streams > 0

    @property
    def _now(self) -> tuple[int | None, frozenset[str]]:
        return self.count, self._unhealthy

    async def is_watched(self) -> None:
        """Returns when a kubelet listens."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.watched)

    async def disconnected(self, seconds: float) -> None:
        """Returns when a kubelet's stream has ended, or after that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    def take_disconnected(self) -> bool:
        """Whether a stream has ended since this was asked."""
        ended = self._ended.is_set()
        self._ended.clear()
        return ended

    async def advertise(self, count: int) -> None:
        async with self._changed:
            self.count = count
            self._changed.notify_all()

    async def judge(self, unhealthy: Collection[str]) -> None:
        """Which devices, by their ids, stand for a GPU that failed."""
        async with self._changed:
            self._unhealthy = frozenset(unhealthy)
            self._changed.notify_all()

    async def known(self) -> None:
        """Returns when there is a figure to tell."""
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
