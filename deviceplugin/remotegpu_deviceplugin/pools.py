"""All GPUPools, listed and watched. While the API server is away, what was last known stays."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from aiohttp import ClientError
from kubernetes.aio import client, watch

from remotegpu.api.kubernetes import GROUP, POOLS, VERSION
from remotegpu_deviceplugin.devices import Pools

_LIST_SECONDS: Final = 10
# The server ends a watch after this; one that does not end is a dead connection.
_WATCH_SECONDS: Final = 120
_PAUSE_SECONDS: Final = 3

_log = logging.getLogger(__name__)


async def follow(api: client.CustomObjectsApi) -> AsyncIterator[Pools]:
    """What is known of the pools, again after each event; never ends."""
    while True:
        try:
            listed = await api.list_cluster_custom_object(GROUP, VERSION, POOLS, _request_timeout=_LIST_SECONDS)
            pools: dict[str, dict[str, Any]] = {pool["metadata"]["name"]: pool for pool in listed["items"]}
            yield Pools.from_objects(pools.values())
            events = watch.Watch().stream(
                api.list_cluster_custom_object, GROUP, VERSION, POOLS,
                resource_version=listed["metadata"]["resourceVersion"],
                timeout_seconds=_WATCH_SECONDS, _request_timeout=_WATCH_SECONDS + _LIST_SECONDS,
            )  # fmt: skip
            async for event in events:
                pool = event["object"]
                if event["type"] == "DELETED":
                    pools.pop(pool["metadata"]["name"], None)
                else:
                    pools[pool["metadata"]["name"]] = pool
                yield Pools.from_objects(pools.values())
        except (client.ApiException, ClientError, OSError, TimeoutError) as error:
            _log.warning("GPUPools cannot be read, what was last known stays: %s", " ".join(str(error).split()))
        await asyncio.sleep(_PAUSE_SECONDS)
