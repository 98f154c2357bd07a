"""A store that lists and watches its objects by itself, for what kopf does not watch.

kopf watches a kind with one selector of labels, in all namespaces. So it can read the pods with a share, but not also
the pods of appliances and of device plugins; and a watch of StatefulSets would need rights in all namespaces. The
dashboard has its own stores, since kopf watches nothing in a replica without the Lease.
"""

import asyncio
import logging
from typing import Final

from remotegpu_operator.cluster.kube import Api, ApiError, Resource, Unanswered
from remotegpu_operator.cluster.store import OnChange, Store

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0


class Cache(Store):
    def __init__(
        self, api: Api, resource: Resource, on_change: OnChange, *, namespace: str | None = None, labels: str = ""
    ) -> None:
        """`namespace` limits the objects; without it, the cache has those of all namespaces."""
        super().__init__(resource, on_change, labels=labels)
        self._api = api
        self._namespace = namespace
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """Lists the objects and then watches them, until cancelled."""
        version = ""
        while True:
            try:
                version = version or await self._list()
                async for event in self._api.watch(self.resource, version, self._namespace, self.labels):
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self.report(event)
            except ApiError as error:
                # The version is too old, or the watch failed for another reason: list again.
                version = ""
                if not error.gone:
                    _log.warning("watching %s: %s", self.resource.plural, error)
                    await asyncio.sleep(_RETRY_SECONDS)
            except Unanswered as error:
                _log.warning("watching %s: the API server does not answer (%r)", self.resource.plural, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _list(self) -> str:
        """Lists all objects. A watch from the list's version, which is returned, then reports the later changes."""
        items, version = await self._api.list(self.resource, self._namespace, self.labels)
        self.replace(items, version)
        self.synced.set()
        return version
