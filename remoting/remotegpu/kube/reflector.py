"""Follows the objects of one of our kinds: lists them, then watches them, and lists again if the watch is lost.

While the API server does not answer, the last known state stays valid. The rules of versions, pages, bookmarks and the
status 410 are from Kubernetes, "API Concepts".
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import ClientError, StreamReader
from kubernetes.aio import client

from remotegpu.api.kubernetes import GROUP, VERSION
from remotegpu.api.lines import one_line

_PAGE: Final = 500
_LIST_SECONDS: Final = 20.0
# The API server ends a watch after this time; a watch that lasts longer is a dead connection.
_WATCH_SECONDS: Final = 60
_WATCH_GRACE_SECONDS: Final = 5.0
_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 5.0
# A restarted API server may list an older state, which is ignored. After this number of such lists in sequence the
# cluster's storage was probably restored from a backup, so the next list is valid.
STALE_LISTS: Final = 12
_GONE: Final = 410
# Characters of an error that are told.
_MOST_CAUSE: Final = 300

NO_ANSWER: Final = (client.ApiException, ClientError, TimeoutError, OSError, ValueError)

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """All objects that exist. The reader must remove all others."""

    objects: list[Object]


@dataclass(frozen=True, slots=True)
class Changed:
    """An object that was created or changed."""

    object: Object


@dataclass(frozen=True, slots=True)
class Deleted:
    """The last state of an object that was deleted."""

    object: Object


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A failed list or watch, with its cause in one line. `follow` retries it."""

    cause: str


Change = Listed | Changed | Deleted | Unreachable


async def follow(api: client.CustomObjectsApi, plural: str, **selectors: str) -> AsyncIterator[Change]:
    """Yields a list of all objects, then each change, without end.

    After a failed list or watch, yields `Unreachable`, and later a new list. An expired version (HTTP status 410) gives
    only a new list. `selectors` may have `field_selector` and `label_selector`.
    """
    pause, version, stale = _FIRST_PAUSE_SECONDS, "", 0
    while True:
        try:
            objects, found = await _list(api, plural, selectors)
            if _is_older(found, version) and stale < STALE_LISTS:
                stale += 1
                raise ValueError(f"it listed {plural} of version {found}, and {version} was seen before")
            yield Listed(objects)
            version, stale = found, 0
            while True:
                began = time.monotonic()
                async for kind, thing in _watch(api, plural, version, selectors):
                    pause, version = _FIRST_PAUSE_SECONDS, thing["metadata"]["resourceVersion"]
                    match kind:
                        case "ADDED" | "MODIFIED":
                            yield Changed(thing)
                        case "DELETED":
                            yield Deleted(thing)
                if time.monotonic() - began < _LONGEST_PAUSE_SECONDS:
                    # An API server, or a proxy, that ends watches at once is not asked again at once.
                    pause = await _rest(pause)
        except NO_ANSWER as error:
            if not (isinstance(error, client.ApiException) and error.status == _GONE):
                yield Unreachable(cause_of(error))
        pause = await _rest(pause)


async def _rest(pause: float) -> float:
    """Sleeps for `pause` seconds. Returns the length of the next pause in sequence."""
    await asyncio.sleep(pause)
    return min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _list(api: client.CustomObjectsApi, plural: str, selectors: dict[str, str]) -> tuple[list[Object], str]:
    """Lists all objects in pages. Returns them, and the version from which a watch can continue."""
    objects: list[Object] = []
    place: dict[str, str] = {}
    while True:
        page: Any = await api.list_cluster_custom_object(
            GROUP, VERSION, plural, limit=_PAGE, _request_timeout=_LIST_SECONDS, **place, **selectors
        )
        match page:
            case {"items": [*items], "metadata": {"resourceVersion": str(version), **rest}}:
                objects += items
            case _:
                raise ValueError(f"it answered with something else than a list of {plural}")
        if not (token := rest.get("continue")):
            return objects, version
        place = {"_continue": str(token)}


async def _watch(
    api: client.CustomObjectsApi, plural: str, version: str, selectors: dict[str, str]
) -> AsyncIterator[tuple[str, Object]]:
    """Yields type and object of each event until the server ends the stream. Raises ApiException at an event ERROR."""
    answer: Any = await api.list_cluster_custom_object_without_preload_content(
        GROUP, VERSION, plural, watch=True, resource_version=version, allow_watch_bookmarks=True,
        timeout_seconds=_WATCH_SECONDS, _request_timeout=_WATCH_SECONDS + _WATCH_GRACE_SECONDS, **selectors,
    )  # fmt: skip
    async with answer:
        if answer.status >= 400:
            raise client.ApiException(answer.status, answer.reason)
        async for line in _lines(answer.content):
            yield _event(json.loads(line))


def _event(event: Any) -> tuple[str, Object]:
    """Returns kind and object of an event. ApiException: an event ERROR; ValueError: anything else."""
    match event:
        case {"type": "ERROR", "object": {**status}} | {"kind": "Status", **status}:
            cause = f"{status.get('reason', '')}: {status.get('message', '')}"
            raise client.ApiException(status.get("code", 500), cause)
        case {"type": str(kind), "object": {"metadata": {"resourceVersion": str()}}}:
            return kind, event["object"]
    raise ValueError("a watch brought something else than an event")


async def _lines(content: StreamReader) -> AsyncIterator[bytes]:
    """Yields whole lines of any length, since an object may exceed aiohttp's limit of a line."""
    rest = b""
    async for piece in content.iter_any():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line


def _is_older(version: str, seen: str) -> bool:
    """Whether `version` is older than `seen`. Versions of one kind increase."""
    return version.isdecimal() and seen.isdecimal() and int(version) < int(seen)


def cause_of(error: Exception) -> str:
    """Returns the cause alone, in one printable line: an ApiException prints headers and body."""
    text = f"{error.status} {error.reason}" if isinstance(error, client.ApiException) else str(error)
    return one_line(" ".join(text.split()), _MOST_CAUSE) or type(error).__name__
