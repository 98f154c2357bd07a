"""Lists and watches this project's objects in the cluster."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from aiohttp import ClientError, StreamReader
from kubernetes.aio import client

from remotegpu.api.kubernetes import GROUP, VERSION

_LIST_SECONDS: Final = 10
# The server ends a watch after this time. A longer watch is a dead connection.
_WATCH_SECONDS: Final = 120
_PAUSE_SECONDS: Final = 3

_log = logging.getLogger(__name__)

Object = dict[str, Any]


async def follow(api: client.CustomObjectsApi, plural: str, **selectors: str) -> AsyncIterator[list[Object]]:
    """Yields the list of all objects, and again after each event. The iterator never ends.

    `selectors` are `field_selector` and `label_selector` of the list call. While the API server is unreachable, the
    iterator waits and tries again.
    """
    complaint = ""
    while True:
        try:
            listed = await api.list_cluster_custom_object(
                GROUP, VERSION, plural, _request_timeout=_LIST_SECONDS, **selectors
            )
            complaint = ""
            known = {_key(each): each for each in listed["items"]}
            yield list(known.values())
            answer = await api.list_cluster_custom_object_without_preload_content(
                GROUP, VERSION, plural, watch=True, resource_version=listed["metadata"]["resourceVersion"],
                timeout_seconds=_WATCH_SECONDS, _request_timeout=_WATCH_SECONDS + _LIST_SECONDS, **selectors,
            )  # fmt: skip
            async with answer:
                answer.raise_for_status()
                async for line in _lines(answer.content):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break  # The resource version is too old: list again.
                    if event["type"] == "DELETED":
                        known.pop(_key(event["object"]), None)
                    else:
                        known[_key(event["object"])] = event["object"]
                    yield list(known.values())
        except (client.ApiException, ClientError, OSError, TimeoutError) as error:
            reason = f"{error.status} {error.reason}" if isinstance(error, client.ApiException) else repr(error)
            if reason != complaint:
                _log.warning("%s cannot be read, what was last known stays: %s; trying again", plural, reason)
                complaint = reason
        await asyncio.sleep(_PAUSE_SECONDS)


def _key(thing: Object) -> tuple[str, str]:
    metadata = thing["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


async def _lines(content: StreamReader) -> AsyncIterator[bytes]:
    """Yields complete lines of any length: a pool with many appliances exceeds aiohttp's limit for a line."""
    rest = b""
    async for piece in content.iter_any():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
