"""One replica of the operator: it waits for the Lease, and then works until it is stopped or loses the Lease.

kopf runs the process, and gives this object to each handler as `memo`.
"""

import asyncio
import contextlib
import logging
from typing import Any

from remotegpu_operator import metrics
from remotegpu_operator.appliances.authority import CertificateAuthority
from remotegpu_operator.appliances.inventory import Inventory
from remotegpu_operator.appliances.tokens import tokens
from remotegpu_operator.builders.appliances import Installation
from remotegpu_operator.claims.claims import Claims
from remotegpu_operator.cluster.events import Events
from remotegpu_operator.cluster.kube import Api, ApiError, Unanswered, configuration
from remotegpu_operator.cluster.leadership import CALL_SECONDS, Leadership, NotLeaderError
from remotegpu_operator.dashboard import serving as dashboard
from remotegpu_operator.pools import Pools
from remotegpu_operator.serving import probes
from remotegpu_operator.serving.beside import beside
from remotegpu_operator.settings import Settings

_log = logging.getLogger("remotegpu_operator")


class Process:
    """The state of this process. `start` and `end` are for kopf's handlers of the same names.

    `stop` ends kopf, and so the process. `status` is then the exit status: 0 only if the process was asked to end.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running = contextlib.AsyncExitStack()
        self._work: asyncio.Task[None]
        self.stop = asyncio.Event()
        self.status = 0
        # These exist once this process holds the Lease.
        self.leadership: Leadership
        self.api: Api
        self.pools: Pools

    async def start(self) -> None:
        """Serves probes and the dashboard, waits for the Lease, and begins the work. A cancellation ends all of it."""
        async with contextlib.AsyncExitStack() as stack:
            leading = asyncio.get_running_loop().create_future()
            # kopf and a thousand claims at once keep this loop busy. The Lease is renewed on time and probes are
            # answered in a loop of their own.
            lease = asyncio.create_task(beside(lambda: self._hold_lease(leading)))
            stack.push_async_callback(_ended, lease)
            await stack.enter_async_context(dashboard.serving(self._settings))
            await asyncio.wait({lease, leading}, return_when=asyncio.FIRST_COMPLETED)
            if not leading.done():
                await lease
            self.leadership = leading.result()
            _log.info("%s holds the Lease", self._settings.identity)
            metrics.LEADER.set(1)
            self.api = await stack.enter_async_context(Api(await configuration(), self.leadership.check))
            self._work = asyncio.create_task(self._lead())
            stack.push_async_callback(_ended, self._work)
            for task in (lease, self._work):
                task.add_done_callback(lambda _: self.stop.set())
            self._running = stack.pop_all()

    async def end(self) -> None:
        """Ends the work, and then gives the Lease back, so that another replica takes over at once."""
        failed = self._work.exception() if self._work.done() and not self._work.cancelled() else None
        if not self.leadership.held or ran_out(failed):
            _log.error("the Lease was lost: another may have it now, so this process ends")
            self.status = 1
        elif failed is not None:
            _log.error("the operator failed", exc_info=failed)
            self.status = 1
        await self._running.aclose()

    async def _hold_lease(self, leading: asyncio.Future[Leadership]) -> None:
        """Acquires the Lease, sets `leading` of the other loop, and renews the Lease until it is lost or cancelled."""
        settings = self._settings
        async with Api(await configuration(), connections=4, seconds=CALL_SECONDS) as api:
            leadership = Leadership(api, settings.namespace, settings.identity)
            async with probes.serve(settings.http_port, lambda: leadership.problem):
                await leadership.acquire()
                try:
                    leading.get_loop().call_soon_threadsafe(leading.set_result, leadership)
                    await leadership.keep()
                finally:
                    try:
                        await leadership.release()
                    except (ApiError, *Unanswered) as error:
                        _log.warning("the Lease is not given back: %s", error)

    async def _lead(self) -> None:
        settings, api = self._settings, self.api
        changed = asyncio.Event()
        inventory = Inventory(tokens(api, settings.namespace, settings.token_file, settings.pod), changed)
        authority = CertificateAuthority(
            api, settings.namespace, generation=settings.ca_generation, given=settings.ca_secret
        )
        installation = Installation(
            settings.namespace,
            settings.appliance_image,
            settings.image_pull_policy,
            metrics_from=settings.metrics_from,
            close_egress=settings.close_egress,
        )
        events = Events(api)
        pools = self.pools = Pools(api, installation, authority, inventory, changed)
        claims = Claims(api, events, settings.namespace, pools.status_is_stale, inventory.move, settings.accounting)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(events.run())
                group.create_task(claims.run(pools.known))
                group.create_task(pools.run(claims))
        finally:
            await inventory.close()


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancels the task and waits for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def ran_out(failed: BaseException | None) -> bool:
    """Whether the work ended because the Lease ran out. It may be held again: a slow renewal may come after that."""
    if isinstance(failed, BaseExceptionGroup):
        return failed.split(NotLeaderError)[1] is None
    return isinstance(failed, NotLeaderError)
