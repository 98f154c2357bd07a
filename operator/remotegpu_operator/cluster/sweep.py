"""Finds what kopf has not reported, by lists.

After a gap in a watch kopf lists the objects again, but does not report those that were deleted in between. The claim
of a pod that was deleted then would keep its share without end. It also drops an event if it fails itself, and does not
watch a kind that it did not find when it began.
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
        # By uid: the versions of the last list of pods that kopf had not reported by then.
        self._unreported: dict[str, int] = {}
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
            # Pods are many: only their metadata is listed, unless there is one that kopf should have reported long ago.
            if store.labels and not await self._late(store):
                return
            store.replace(*await self._api.list(store.resource, labels=store.labels))
        except (ApiError, *Unanswered) as error:
            _log.warning("sweeping %s: %r", store.resource.plural, error)
            self.listed(store)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _late(self, store: Store) -> bool:
        """Forgets what is gone. Whether kopf has still not reported a state that the list before this one had."""
        versions, version = await self._api.versions(store.resource, store.labels)
        store.prune(versions.keys(), version)
        before = self._unreported
        self._unreported = {uid: each for uid, each in versions.items() if each > store.version(uid)}
        late = sum(before.get(uid, 0) > store.version(uid) for uid in self._unreported)
        if late:
            _log.warning("%s: kopf has not reported %d that were listed before", store.resource.plural, late)
        return late > 0


async def fill(api: Api, stores: Collection[Store]) -> None:
    """Fills the stores with all objects. kopf's own lists then meet versions that are known.

    kopf looks once which kinds there are. The API server serves a new kind a moment before it names its group.
    """
    for store in stores:
        while True:
            try:
                store.replace(*await api.list(store.resource, labels=store.labels))
                if await api.names(store.resource):
                    break
                _log.warning("listing %s: the API server does not name their group yet", store.resource.plural)
            except (ApiError, *Unanswered) as error:
                _log.warning("listing %s: %r", store.resource.plural, error)
            await asyncio.sleep(_RETRY_SECONDS)
