"""Writes Events about claims and pods, which `kubectl describe` shows."""

import asyncio
import datetime
import logging
import time
import uuid
from collections import OrderedDict
from typing import Final

from remotegpu.api.conditions import timestamp
from remotegpu_operator import metrics
from remotegpu_operator.cluster.kube import Api, ApiError, Object, Resource, Unanswered

_log = logging.getLogger(__name__)

EVENTS: Final = Resource("v1", "events", "Event")
SOURCE: Final = "remotegpu-operator"
# The longest queue. Further Events are dropped and counted: reconciliation does not wait for Events.
_QUEUED: Final = 10_000
_WRITERS: Final = 4
_REPEAT_SECONDS: Final = 600.0
_REMEMBERED: Final = 20_000


class Events:
    """Writes Events from a queue. Equal Events about an object are written at most once in ten minutes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._queue: asyncio.Queue[Object] = asyncio.Queue(_QUEUED)
        self._written: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def about(self, resource: Resource, thing: Object, reason: str, message: str, *, warning: bool = False) -> None:
        metadata = thing["metadata"]
        key = (metadata["uid"], reason, message)
        now = time.monotonic()
        if now - self._written.get(key, float("-inf")) < _REPEAT_SECONDS:
            return
        self._written[key] = now
        self._written.move_to_end(key)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)
        try:
            self._queue.put_nowait(event(resource, thing, reason, message, warning=warning))
        except asyncio.QueueFull:
            metrics.EVENTS_DROPPED.inc()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as writers:
            for _ in range(_WRITERS):
                writers.create_task(self._write())

    async def _write(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._api.create(EVENTS, event["metadata"]["namespace"], event)
            except ApiError as error:
                # The namespace may be terminating.
                _log.debug("an Event is not written: %s", error)
            except Unanswered as error:
                _log.warning("an Event is not written: the API server does not answer (%r)", error)


def event(resource: Resource, thing: Object, reason: str, message: str, *, warning: bool) -> Object:
    metadata = thing["metadata"]
    now = timestamp(datetime.datetime.now(datetime.UTC))
    namespace = metadata.get("namespace", "default")
    reference = {
        "apiVersion": resource.api,
        "kind": resource.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
        **({"namespace": metadata["namespace"]} if "namespace" in metadata else {}),
    }
    return {
        "metadata": {"name": f"{metadata['name'][:230]}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
        "involvedObject": reference,
        "reason": reason,
        "message": message[:1024],
        "type": "Warning" if warning else "Normal",
        "source": {"component": SOURCE},
        "reportingComponent": SOURCE,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
