"""Serves the page and its data over HTTP.

All routes are GET and read-only. A token is accepted only in a header, which a page of another site cannot send.
"""

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from remotegpu.dashboard import page
from remotegpu.dashboard.state import Scope, Snapshot
from remotegpu_operator.claims.stores import GPUCLAIMS
from remotegpu_operator.cluster.events import EVENTS
from remotegpu_operator.cluster.kube import Api, ApiError, Unanswered
from remotegpu_operator.dashboard.access import Access, NotAllowedError, NotSignedInError, Reader
from remotegpu_operator.dashboard.live import Live
from remotegpu_operator.dashboard.loads import Loads
from remotegpu_operator.dashboard.usage import BY, RANGES, Prices, Recorded
from remotegpu_operator.serving.door import Door, Places

_log = logging.getLogger(__name__)

_MOST_STREAMS: Final = 200
_MOST_STREAMS_OF_READER: Final = 32
# The limits for one peer are high, because behind a proxy all readers have the same address.
PLACES: Final = Places(waiting=256, waiting_of_peer=64, answering=512, answering_of_peer=384)
ABOUT: Final = {"of": "cluster", "signIn": True}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Dashboard:
    def __init__(self, api: Api, live: Live, recorded: Recorded, loads: Loads) -> None:
        self._api = api
        self._live = live
        self._recorded = recorded
        self._loads = loads
        self._access = Access(api, live.namespaces)
        # Includes namespaces that have usage but no claims now.
        self._usage_access = Access(api, recorded.namespaces)
        self._whole = live.snapshot()
        self._seen: dict[Scope, Snapshot] = {}
        self.door = Door(PLACES)
        # The number of open pages, by user.
        self._streams: Counter[str] = Counter()

    def application(self) -> web.Application:
        app = web.Application(middlewares=[_with_json_errors])
        app.on_response_prepare.append(_add_headers)
        ways: dict[str, Handler] = {
            "/": _page,
            "/api/about": _about,
            "/api/snapshot": self._snapshot,
            "/api/events": self._events,
            "/api/claims/{namespace}/{name}/events": self._events_of,
            "/api/claims/{namespace}/{name}/why": self._why,
            "/api/claims/{namespace}/{name}/usage": self._usage_of,
            "/api/load": self._load,
            "/api/usage": self._usage,
            page.VENDORED: _vendored,
        }
        app.add_routes([web.get(path, self.door.counted(handler)) for path, handler in ways.items()])
        app.add_routes([web.static("/static", page.STATIC)])
        return app

    async def _snapshot(self, request: web.Request) -> web.Response:
        reader = await self._reader(request)
        return _json({"user": reader.user, **self._seen_by(reader).to_object()})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Sends the complete snapshot, and then changes at most once a second, while the reader has the rights."""
        reader = await self._reader(request)
        if self._streams.total() >= _MOST_STREAMS or self._streams[reader.user] >= _MOST_STREAMS_OF_READER:
            most = f"{_MOST_STREAMS} pages, {_MOST_STREAMS_OF_READER} of one user,"
            raise web.HTTPServiceUnavailable(text=f"{most} are open at a time: close some, or try later")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._streams[reader.user] += 1
        try:
            first = self._seen_by(reader)
            await _send(response, {"user": reader.user, **first.to_object()})
            feed = page.Feed(first)
            while True:
                await asyncio.sleep(page.INTERVAL_SECONDS)
                if told := feed.next(self._seen_by(await self._reader(request))):
                    await response.write(told)
        except ConnectionError:
            return response
        except _REFUSALS as error:
            await _send(response, {"error": _refusal(error).text})
            return response
        finally:
            self._streams[reader.user] -= 1
            self._streams += Counter()  # drops readers without a stream

    async def _events_of(self, request: web.Request) -> web.Response:
        _, namespace, name = await self._claim(request)
        selector = f"involvedObject.kind={GPUCLAIMS.kind},involvedObject.name={name}"
        try:
            # Listed with the reader's token: the operator's rights are greater.
            found = await self._api.list_as(_token(request), EVENTS, namespace, selector)
        except (ApiError, *Unanswered) as error:
            return _json({"events": [], "problem": f"its events are not known: {error}"})
        keys = ("type", "reason", "message", "count", "firstTimestamp", "lastTimestamp")
        return _json({"events": [{key: each.get(key) for key in keys} for each in found], "problem": ""})

    async def _why(self, request: web.Request) -> web.Response:
        """Explains why a claim waits. Only readers of all namespaces get an answer, because it may name any claim."""
        reader, namespace, name = await self._claim(request)
        if reader.scope.namespaces is not None:
            return _json(None)
        try:
            return _json(dataclasses.asdict(await self._live.why(namespace, name)))
        except (KeyError, ValueError):
            raise web.HTTPNotFound(text=f"GPUClaim {namespace}/{name} has just gone or changed") from None

    async def _load(self, request: web.Request) -> web.Response:
        reader = await self._reader(request)
        return _json(await self._loads.load(reader.scope))

    async def _usage(self, request: web.Request) -> web.Response:
        length, by = request.query.get("range", ""), request.query.get("by", "")
        if length not in RANGES or by not in BY:
            said = f"range is one of {', '.join(RANGES)}, by one of {', '.join(BY)}"
            raise web.HTTPBadRequest(text=said)
        reader = await self._usage_access.reader(_token(request))
        return _json(await self._recorded.usage(reader.scope, length, by, self._prices(reader)))

    async def _usage_of(self, request: web.Request) -> web.Response:
        reader, namespace, name = await self._claim(request)
        return _json(await self._recorded.of_claim(namespace, name, self._prices(reader)))

    def _prices(self, reader: Reader) -> Prices:
        return self._live.prices() if reader.scope.pools else {}

    async def _claim(self, request: web.Request) -> tuple[Reader, str, str]:
        """Returns the reader, and the namespace and name of the claim in the path.

        Raises HTTPNotFound if the reader may not list the claim.
        """
        reader = await self._reader(request)
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        if f"{namespace}/{name}" not in self._seen_by(reader).claims:
            raise web.HTTPNotFound(text=f"there is no GPUClaim {namespace}/{name} that {reader.user} may list")
        return reader, namespace, name

    async def _reader(self, request: web.Request) -> Reader:
        if problem := self._live.problem:
            raise web.HTTPServiceUnavailable(text=problem)
        return await self._access.reader(_token(request))

    def _seen_by(self, reader: Reader) -> Snapshot:
        """Returns the part of the snapshot that the reader may see. Readers with the same rights share one object."""
        whole = self._live.snapshot()
        if whole is not self._whole:
            self._whole, self._seen = whole, {}
        if reader.scope not in self._seen:
            self._seen[reader.scope] = whole.seen_by(reader.scope)
        return self._seen[reader.scope]


def _token(request: web.Request) -> str:
    return page.token_of(request.headers)


async def _page(_request: web.Request) -> web.StreamResponse:
    return web.FileResponse(page.STATIC / "index.html")


async def _about(_request: web.Request) -> web.Response:
    return _json(ABOUT)


async def _vendored(_request: web.Request) -> web.StreamResponse:
    try:
        return web.FileResponse(page.vendored())
    except FileNotFoundError as error:
        raise web.HTTPNotFound(text=str(error)) from None


_REFUSALS: Final = (NotSignedInError, NotAllowedError, ApiError, *Unanswered)


def _refusal(error: BaseException) -> web.HTTPException:
    if isinstance(error, NotSignedInError):
        return web.HTTPUnauthorized(text=str(error), headers={"WWW-Authenticate": "Bearer"})
    if isinstance(error, NotAllowedError):
        return web.HTTPForbidden(text=str(error))
    _log.warning("the API server does not say who reads, or what was used: %r", error)
    return web.HTTPServiceUnavailable(text=f"the API server does not answer the dashboard ({error}): try again")


@web.middleware
async def _with_json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except _REFUSALS as error:
        refused = _refusal(error)
    except web.HTTPException as error:
        refused = error
    headers = {key: value for key, value in refused.headers.items() if key in ("WWW-Authenticate", "Allow")}
    return web.json_response({"error": refused.text}, status=refused.status, headers=headers)


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(page.HEADERS)


def _json(value: Any) -> web.Response:
    response = web.json_response(value)
    response.enable_compression()
    return response


async def _send(response: web.StreamResponse, value: Any) -> None:
    await response.write(page.event(value))
