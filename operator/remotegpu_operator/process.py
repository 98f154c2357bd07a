"""One replica of the operator: it waits for the Lease, and then works until it is stopped or loses the Lease.

kopf runs the process, and gives this object to each handler as `memo`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from remotegpu_operator import metrics
from remotegpu_operator.appliances.authority import CertificateAuthority
from remotegpu_operator.appliances.inventory import Inventory
from remotegpu_operator.appliances.tokens import tokens
from remotegpu_operator.builders.appliances import Installation
from remotegpu_operator.claims.claims import Claims
from remotegpu_operator.claims.stores import Stores
from remotegpu_operator.cluster.cache import follow
from remotegpu_operator.cluster.events import Events
from remotegpu_operator.cluster.kube import Api, ApiError, Object, Unanswered, configuration
from remotegpu_operator.cluster.leadership import CALL_SECONDS, Leadership, NotLeaderError
from remotegpu_operator.cluster.store import Store
from remotegpu_operator.cluster.sweep import Sweep, fill
from remotegpu_operator.dashboard import serving as dashboard
from remotegpu_operator.pools import Pools
from remotegpu_operator.serving import probes
from remotegpu_operator.serving.beside import beside
from remotegpu_operator.settings import Settings

_log = logging.getLogger("remotegpu_operator")


class Process:
    """The state of this process. `start` and `end` are for kopf's startup and cleanup.

    `stop` ends kopf, and so the process. `status` is then the exit status: 0 only if the process was asked to end.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._leading: asyncio.Future[Leadership]
        self.stop = asyncio.Event()
        self.status = 0
        self.stores = Stores()
        # These exist once this process holds the Lease.
        self.api: Api
        self.pools: Pools
        self.claims: Claims
        self.sweep: Sweep

    async def start(self) -> None:
        """Serves probes and the dashboard, waits for the Lease, fills the stores and begins the work.

        kopf cancels this if the process is to end meanwhile, and then does not call `end`.
        """
        try:
            await self._start()
        except BaseException:
            await self.end()
            raise

    async def _start(self) -> None:
        settings = self._settings
        self._leading = asyncio.get_running_loop().create_future()
        await self._running.enter_async_context(dashboard.serving(settings))
        # A thousand claims at once, and kopf, keep this loop busy. A loop of its own renews the Lease on time, and
        # answers probes.
        self._begin(beside(self._hold_lease))
        leadership = await asyncio.shield(self._leading)
        _log.info("%s holds the Lease", settings.identity)
        metrics.LEADER.set(1)
        self.api = await self._running.enter_async_context(Api(await configuration(), leadership.check))
        changed = asyncio.Event()
        inventory = Inventory(tokens(self.api, settings.namespace, settings.token_file, settings.pod), changed)
        self._running.push_async_callback(inventory.close)
        authority = CertificateAuthority(
            self.api, settings.namespace, generation=settings.ca_generation, given=settings.ca_secret
        )
        installation = Installation(
            settings.namespace,
            settings.appliance_image,
            settings.image_pull_policy,
            metrics_from=settings.metrics_from,
            close_egress=settings.close_egress,
        )
        events = Events(self.api)
        self.pools = Pools(self.api, self.stores, installation, authority, inventory, changed)
        self.claims = Claims(
            self.api,
            events,
            self.stores,
            settings.namespace,
            self.pools.status_is_stale,
            inventory.move,
            settings.accounting,
        )
        self.sweep = Sweep(self.api, self.stores.of_kopf())
        await fill(self.api, self.stores.all())
        self._begin(self._work(events))

    def report(self, store: Store, event: Object) -> None:
        """Stores what kopf reports of an object. An event without a type is from a list of kopf, not from a watch."""
        if event["type"] is None:
            self.sweep.listed(store)
        store.report(event)

    async def end(self) -> None:
        """Ends the work, and then gives the Lease back, so that another replica takes over at once."""
        ended = [task for task in self._tasks if task.done() and not task.cancelled()]
        failed = next(filter(None, (task.exception() for task in ended)), None)
        if (self._leading.done() and not self._leading.result().held) or ran_out(failed):
            _log.error("the Lease was lost: another may have it now, so this process ends")
            self.status = 1
        elif failed is not None:
            _log.error("the operator failed", exc_info=failed)
            self.status = 1
        await self._running.aclose()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins work whose end, by failure or loss of the Lease, is the end of the process."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self.stop.set())
        self._tasks.append(task)
        self._running.push_async_callback(_ended, task)

    async def _work(self, events: Events) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(events.run())
            group.create_task(self.sweep.run())
            group.create_task(follow(self.api, self.stores.claims))
            group.create_task(self.claims.run(self.pools.known))
            group.create_task(self.pools.run(self.claims))

    async def _hold_lease(self) -> None:
        """Acquires the Lease, tells the other loop, and renews the Lease until it is lost or this is cancelled."""
        settings = self._settings
        async with Api(await configuration(), connections=4, seconds=CALL_SECONDS) as api:
            leadership = Leadership(api, settings.namespace, settings.identity)
            async with probes.serve(settings.http_port, lambda: leadership.problem):
                try:
                    await leadership.acquire()
                    self._leading.get_loop().call_soon_threadsafe(self._leading.set_result, leadership)
                    await leadership.keep()
                finally:
                    try:
                        await leadership.release()
                    except (ApiError, *Unanswered) as error:
                        _log.warning("the Lease is not given back: %s", error)


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancels the task and waits for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def ran_out(failed: BaseException | None) -> bool:
    """Whether the work ended because the Lease ran out. It may be held again: a slow renewal may come after that."""
    if isinstance(failed, BaseExceptionGroup):
        return failed.split(NotLeaderError)[1] is None
    return isinstance(failed, NotLeaderError)
