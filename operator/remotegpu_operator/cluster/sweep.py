"""Finds deletions that a watch has missed, by lists of the objects' metadata.

After a gap in a watch kopf lists the objects again, but does not report those that were deleted in between. The claim
of a pod that was deleted then would keep its share without end.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection
from typing import Final

from remotegpu_operator.cluster.kube import Api, ApiError, Unanswered
from remotegpu_operator.cluster.store import Store

_log = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 60.0
# kopf reports the objects of a new list one by one. A pause, so that one sweep follows such a list.
_GATHER_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 1.0


class Sweep:
    def __init__(self, api: Api, stores: Collection[Store]) -> None:
        self._api = api
        self._stores = stores
        self._due: set[Store] = set()
        self._woken = asyncio.Event()

    def listed(self, store: Store) -> None:
        """Notes that kopf has listed the objects again: its watch may have missed deletions before."""
        self._due.add(store)
        self._woken.set()

    async def run(self) -> None:
        """Sweeps all stores once a minute, and each store soon after a list by kopf, until cancelled."""
        whole = time.monotonic() + _EVERY_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, whole - time.monotonic())):
                    await self._woken.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            if time.monotonic() >= whole:
                whole = time.monotonic() + _EVERY_SECONDS
                self._due.update(self._stores)
            self._woken.clear()
            while self._due:
                await self._sweep(self._due.pop())

    async def _sweep(self, store: Store) -> None:
        try:
            store.prune(*await self._api.uids(store.resource, store.labels))
        except (ApiError, *Unanswered) as error:
            _log.warning("sweeping %s: %r", store.resource.plural, error)
            self.listed(store)
            await asyncio.sleep(_RETRY_SECONDS)


async def fill(api: Api, stores: Collection[Store]) -> None:
    """Fills the stores with all objects. kopf's own lists then meet versions that are known."""
    for store in stores:
        while True:
            try:
                store.replace(*await api.list(store.resource, labels=store.labels))
                break
            except (ApiError, *Unanswered) as error:
                _log.warning("listing %s: %r", store.resource.plural, error)
                await asyncio.sleep(_RETRY_SECONDS)
