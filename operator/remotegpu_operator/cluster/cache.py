"""Lists and watches the objects of a store, for what kopf does not watch (decision 039)."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from remotegpu_operator.cluster.kube import Api, ApiError, Resource, Unanswered
from remotegpu_operator.cluster.store import OnChange, Store

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0


class Cache(Store):
    """A store that follows its objects by itself. `namespace` limits them; without it, it has those of all."""

    def __init__(
        self, api: Api, resource: Resource, on_change: OnChange, *, namespace: str | None = None, labels: str = ""
    ) -> None:
        super().__init__(resource, on_change, labels=labels)
        self._api = api
        self._namespace = namespace
        self.synced = asyncio.Event()

    async def run(self) -> None:
        await follow(self._api, self, self._namespace, self.synced.set)


async def follow(
    api: Api, store: Store, namespace: str | None = None, listed: Callable[[], None] = lambda: None
) -> None:
    """Lists the objects of a store and then watches them, until cancelled. Calls `listed` after each list."""
    version = ""
    while True:
        try:
            if not version:
                items, version = await api.list(store.resource, namespace, store.labels)
                store.replace(items, version)
                listed()
            async for event in api.watch(store.resource, version, namespace, store.labels):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    store.report(event)
        except ApiError as error:
            # The version is too old (410), or the watch failed for another reason: list again.
            version = ""
            if error.status != 410:
                _log.warning("watching %s: %s", store.resource.plural, error)
                await asyncio.sleep(_RETRY_SECONDS)
        except Unanswered as error:
            _log.warning("watching %s: the API server does not answer (%r)", store.resource.plural, error)
            await asyncio.sleep(_RETRY_SECONDS)
