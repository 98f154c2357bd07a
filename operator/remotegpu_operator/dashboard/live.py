"""The live snapshot of pools and claims. Every replica has its own caches, even without the Lease."""

import asyncio
import datetime
import time
from typing import Final

from remotegpu.api.kubernetes import CLAIMS, POOLS
from remotegpu.api.objects import readable
from remotegpu.api.pools import ApplianceStatus, GPUPool, Price
from remotegpu.api.waiting import Answer
from remotegpu.dashboard.page import INTERVAL_SECONDS
from remotegpu.dashboard.state import Snapshot
from remotegpu_operator.claims import why
from remotegpu_operator.claims.stores import GPUCLAIMS, GPUPOOLS, PRIORITY_CLASSES, QUOTAS
from remotegpu_operator.cluster.cache import Cache
from remotegpu_operator.cluster.kube import Api, Object
from remotegpu_operator.dashboard.snapshot import current

# The pause after a snapshot, in multiples of its duration: snapshots use at most a fifth of the time, because the
# operator works in the same process.
_PAUSE_PER_WORK: Final = 4
# The longest age of a snapshot. Schedules begin and end without a change of objects.
_STALE_SECONDS: Final = 20.0


class Live:
    def __init__(self, api: Api) -> None:
        kinds = (GPUPOOLS, GPUCLAIMS, QUOTAS, PRIORITY_CLASSES)
        self._caches = {kind.plural: Cache(api, kind, self._changed) for kind in kinds}
        self._stale = True
        self._made = float("-inf")
        self._pause = INTERVAL_SECONDS
        self._explaining = asyncio.Lock()
        self._snapshot = Snapshot([], {})

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for cache in self._caches.values():
                group.create_task(cache.run())

    @property
    def problem(self) -> str:
        """The reason why there is no snapshot yet; empty if there is one."""
        missing = [plural for plural, cache in self._caches.items() if not cache.synced.is_set()]
        return f"the API server has not listed {', '.join(missing)} yet: try again" if missing else ""

    def snapshot(self) -> Snapshot:
        """Returns the present snapshot. It is the same object while nothing has changed, and for at least a second."""
        age = time.monotonic() - self._made
        if (self._stale and age >= self._pause) or age >= _STALE_SECONDS:
            begun, self._stale = time.monotonic(), False
            made = current(self._objects(), datetime.datetime.now(datetime.UTC))
            if made != self._snapshot:
                self._snapshot = made
            self._made = time.monotonic()
            self._pause = max(INTERVAL_SECONDS, _PAUSE_PER_WORK * (self._made - begun))
        return self._snapshot

    async def namespaces(self) -> set[str]:
        return {claim["metadata"]["namespace"] for claim in self._caches[CLAIMS]}

    def appliances(self) -> list[ApplianceStatus]:
        return [each for pool in self._pools() for each in pool.status.appliances]

    def prices(self) -> dict[str, tuple[Price, ...]]:
        return {pool.name: pool.spec.prices for pool in self._pools()}

    def _pools(self) -> list[GPUPool]:
        return readable(GPUPool.from_object, self._caches[POOLS])

    async def why(self, namespace: str, name: str) -> Answer:
        """Explains why a claim waits. The work takes seconds, so it runs in a thread, one explanation at a time.

        Raises KeyError if the claim does not exist, and ValueError if it cannot be read.
        """
        async with self._explaining:
            now = datetime.datetime.now(datetime.UTC)
            return await asyncio.to_thread(why.explain, namespace, name, self._objects(), now)

    def _objects(self) -> dict[str, list[Object]]:
        return {plural: list(cache) for plural, cache in self._caches.items()} | {"pods": []}

    def _changed(self, _before: Object | None, _now: Object | None) -> None:
        self._stale = True
