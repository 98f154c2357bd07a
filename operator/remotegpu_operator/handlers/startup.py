"""The process: what happens when it starts, when it ends, and when it needs access to the API server."""

import asyncio
import functools
import logging
from typing import Any, Final

import aiohttp
import kopf
from kopf._core.reactor import inventory

from remotegpu_operator.cluster.kube import PAGE, WATCH_SECONDS
from remotegpu_operator.handlers import claims, classes, nodes, pods, pools, quotas
from remotegpu_operator.process import Process

_log = logging.getLogger(__name__)

_REFUSED_SECONDS: Final = 1.0
_LEFT_SECONDS: Final = 5.0


@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def process_starts(settings: kopf.OperatorSettings, memo: Process, **_: Any) -> None:
    """Waits for the Lease, lists all objects, and begins the work (`Process.start`). kopf watches objects after this.

    Probes are answered from the first moment, by the thread of the Lease. A SIGTERM cancels the wait: the process ends
    with status 0 and has nothing to give back.
    """
    configure(settings, memo)
    connect(memo)
    await memo.start()


@kopf.on.cleanup(errors=kopf.ErrorsMode.PERMANENT)
async def process_ends(memo: Process, **_: Any) -> None:
    """Ends the work and then gives the Lease back (`Process.end`), after kopf's last handler.

    kopf ends after a SIGTERM (status 0), and when the Lease is lost or the work fails (status 1), which `Process.stop`
    tells it. From the loss of the Lease on, each write raises NotLeaderError (`Leadership.check`, called by `Api`).
    It also ends when one of its own watches fails (status 1, decision 039). The others are then still there, and kopf
    would wait for them without end, since it cancels them together with what they wait for.
    """
    left = [each for each in asyncio.all_tasks() if each.get_name().startswith("watcher for ")]
    for each in left:
        each.cancel()
    if left:
        await asyncio.wait(left, timeout=_LEFT_SECONDS)
    await memo.end()


@kopf.on.login(backoff=_REFUSED_SECONDS)
async def access_is_needed(memo: Process, **_: Any) -> kopf.AiohttpSession:
    """Gives kopf a new session: at the start, and whenever the API server has refused a request with 401.

    kopf never takes a session that was refused again, but this one is another: also a valid token is refused at times,
    such as when the API server cannot look its account up.
    """
    return kopf.AiohttpSession(server=memo.api.server, aiohttp_session=memo.api.session(_refused_slowly))


async def _refused_slowly(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keeps a refusal for a second: kopf logs in and asks again at once after it, for as long as it is refused."""
    response = await send(request)
    if response.status == 401:
        _log.warning("kopf asks again, since the API server refuses its access (401): %s", request.url.path)
        await asyncio.sleep(_REFUSED_SECONDS)
    return response


def connect(process: Process) -> None:
    """Connects each store with the handler of its kind."""
    stores = process.stores
    for store, kind in (
        (stores.nodes, nodes),
        (stores.pools, pools),
        (stores.quotas, quotas),
        (stores.classes, classes),
        (stores.claims, claims),
        (stores.pods, pods),
    ):
        store.on_change = functools.partial(kind.changed, process)


def configure(settings: kopf.OperatorSettings, process: Process) -> None:
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.connect_timeout = 3
    settings.networking.request_timeout = 10
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 15
    settings.watching.chunk_size = PAGE
    settings.persistence.diffbase_storage = NoDiffBase()
    for store in process.stores.all():
        if store.labels:
            settings.watching.label_selectors[*store.resource.names] = store.labels


class NoDiffBase(kopf.DiffBaseStorage):
    """kopf stores no last state of an object, and so does not copy and compare each body: no handler needs it."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        pass


class NoMemories(inventory.ResourceMemories):
    """kopf remembers nothing of single objects. It would never forget one whose deletion it missed.

    `memobase` has no default: without it no handler would have the process, and all would fail silently.
    """

    async def recall(  # type: ignore[override]
        self, *_: Any, memobase: Any, **__: Any
    ) -> inventory.ResourceMemory:
        return inventory.ResourceMemory(memo=memobase)
