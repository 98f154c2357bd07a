"""All GPUPools, listed and watched. While the API server is away, what was last known stays."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from aiohttp import ClientError, StreamReader
from kubernetes.aio import client

from remotegpu.api.kubernetes import GROUP, POOLS, VERSION
from remotegpu_deviceplugin.devices import Pools

_LIST_SECONDS: Final = 10
# The server ends a watch after this; one that does not end is a dead connection.
_WATCH_SECONDS: Final = 120
_PAUSE_SECONDS: Final = 3

_log = logging.getLogger(__name__)


async def follow(api: client.CustomObjectsApi) -> AsyncIterator[Pools]:
    """What is known of the pools, again after each event; never ends."""
    complaint = ""
    while True:
        try:
            listed = await api.list_cluster_custom_object(GROUP, VERSION, POOLS, _request_timeout=_LIST_SECONDS)
            complaint = ""
            pools: dict[str, dict[str, Any]] = {pool["metadata"]["name"]: pool for pool in listed["items"]}
            yield Pools.from_objects(pools.values())
            answer = await api.list_cluster_custom_object_without_preload_content(
                GROUP, VERSION, POOLS, watch=True, resource_version=listed["metadata"]["resourceVersion"],
                timeout_seconds=_WATCH_SECONDS, _request_timeout=_WATCH_SECONDS + _LIST_SECONDS,
            )  # fmt: skip
            async with answer:
                answer.raise_for_status()
                async for line in _lines(answer.content):
                    event = json.loads(line)
                    name = event["object"].get("metadata", {}).get("name")
                    if event["type"] == "ERROR":
                        break  # Its version is too old: list again.
                    if event["type"] == "DELETED":
                        pools.pop(name, None)
                    else:
                        pools[name] = event["object"]
                    yield Pools.from_objects(pools.values())
        except (client.ApiException, ClientError, OSError, TimeoutError) as error:
            reason = f"{error.status} {error.reason}" if isinstance(error, client.ApiException) else repr(error)
            if reason != complaint:
                _log.warning("GPUPools cannot be read, what was last known stays: %s; trying again", reason)
                complaint = reason
        await asyncio.sleep(_PAUSE_SECONDS)


async def _lines(content: StreamReader) -> AsyncIterator[bytes]:
    """Whole ones, of any length: a pool with many appliances is longer than aiohttp's lines may be."""
    rest = b""
    async for piece in content.iter_any():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
