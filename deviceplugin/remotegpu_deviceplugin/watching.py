"""Objects of ours in the cluster. While the API server is away, what was last known stays."""

import logging
from collections.abc import AsyncIterator

from kubernetes.aio import client

from remotegpu.kube.reflector import Changed, Deleted, Listed, Object, Unreachable, follow

_log = logging.getLogger(__name__)


async def snapshots(api: client.CustomObjectsApi, plural: str, **selectors: str) -> AsyncIterator[list[Object]]:
    """Yields all objects of a kind, again after each change; never ends. For `selectors` see `follow`."""
    known: dict[str, Object] = {}
    trouble = ""
    async for change in follow(api, plural, **selectors):
        match change:
            case Listed(objects):
                known, trouble = {_uid(each): each for each in objects}, ""
            case Changed(each):
                known[_uid(each)] = each
            case Deleted(each):
                known.pop(_uid(each), None)
            case Unreachable(cause):
                if cause != trouble:
                    _log.warning("%s cannot be read, what was last known stays: %s; trying again", plural, cause)
                trouble = cause
                continue
        yield list(known.values())


def _uid(thing: Object) -> str:
    uid: str = thing["metadata"]["uid"]
    return uid
