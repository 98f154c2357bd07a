"""`python -m remotegpu_operator`: of several replicas one holds the Lease and works; the others wait for the Lease."""

import asyncio
import dataclasses
import logging
import signal
import sys
import threading
from typing import Any

import kopf

from remotegpu_operator import audit, metrics
from remotegpu_operator.appliances.authority import CertificateAuthority
from remotegpu_operator.appliances.inventory import Inventory
from remotegpu_operator.appliances.tokens import tokens
from remotegpu_operator.builders.appliances import Installation
from remotegpu_operator.claims.claims import Claims
from remotegpu_operator.cluster.events import Events
from remotegpu_operator.cluster.kube import Api, ApiError, Unanswered, configuration
from remotegpu_operator.cluster.leadership import CALL_SECONDS, Leadership, NotLeaderError
from remotegpu_operator.dashboard import serving as dashboard
from remotegpu_operator.handlers import nodes, pools
from remotegpu_operator.pools import Pools
from remotegpu_operator.serving import probes
from remotegpu_operator.serving.beside import beside
from remotegpu_operator.settings import Settings, SettingsError

_log = logging.getLogger("remotegpu_operator")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    audit.set_up()
    # kopf and asyncio log every step. Messages for people are in the operator's log and in Events.
    logging.getLogger("kopf").setLevel(logging.ERROR)
    try:
        return asyncio.run(_run(Settings.of()))
    except SettingsError as error:
        _log.error("%s", error)
        return 2


async def _run(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Api(await configuration(), connections=4, seconds=CALL_SECONDS) as api:
        leadership = Leadership(api, settings.namespace, settings.identity)
        async with (
            probes.serve(settings.http_port, lambda: leadership.problem),
            dashboard.serving(settings),
        ):
            stopping = asyncio.create_task(stop.wait())
            acquiring = asyncio.create_task(leadership.acquire())
            await asyncio.wait({stopping, acquiring}, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                acquiring.cancel()
                return 0
            _log.info("%s holds the Lease", settings.identity)
            metrics.LEADER.set(1)
            # A thousand claims at once keep an event loop busy, so the work runs in a loop of its own. This loop renews
            # the Lease on time.
            leading = asyncio.create_task(beside(lambda: _lead(settings, leadership)))
            keeping = asyncio.create_task(leadership.keep())
            await asyncio.wait({stopping, leading, keeping}, return_when=asyncio.FIRST_COMPLETED)
            return await _end(leadership, leading, keeping, stopping)


async def _end(
    leadership: Leadership,
    leading: asyncio.Task[None],
    keeping: asyncio.Task[None],
    stopping: asyncio.Task[bool],
) -> int:
    """Stops all tasks, releases the Lease if this process still holds it, and returns the exit status.

    After a release another replica takes over at once. The status is 0 only if the process was asked to stop.
    """
    failed = leading.exception() if leading.done() and not leading.cancelled() else None
    lost = not leadership.held or ran_out(failed)
    for task in (leading, keeping, stopping):
        task.cancel()
    await asyncio.gather(leading, keeping, stopping, return_exceptions=True)
    if lost:
        _log.error("the Lease was lost: another may have it now, so this process ends")
        failed = None
    try:
        await leadership.release()
    except (ApiError, *Unanswered) as error:
        _log.warning("the Lease is not given back: %s", error)
    if failed is not None:
        _log.error("the operator failed", exc_info=failed)
    return 1 if lost or failed is not None else 0


def ran_out(failed: BaseException | None) -> bool:
    """Whether the work ended because the Lease ran out. It may be held again: a slow renewal may come after that."""
    if isinstance(failed, BaseExceptionGroup):
        return failed.split(NotLeaderError)[1] is None
    return isinstance(failed, NotLeaderError)


async def _lead(settings: Settings, leadership: Leadership) -> None:
    async with Api(await configuration(), leadership.check) as api:
        await _work(settings, api)


async def _work(settings: Settings, api: Api) -> None:
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
    pool_work = Pools(api, installation, authority, inventory, changed)
    claim_work = Claims(api, events, settings.namespace, pool_work.status_is_stale, inventory.move, settings.accounting)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(events.run())
            group.create_task(claim_work.run(pool_work.known))
            group.create_task(pool_work.run(claim_work))
            group.create_task(_watch_with_kopf(api.server, pool_work.wake))
    finally:
        await inventory.close()


async def _watch_with_kopf(server: str, wake: asyncio.Event) -> None:
    """Runs kopf's handlers for pools and nodes until cancelled. A handler only wakes the reconciler of pools."""
    registry = kopf.OperatorRegistry()
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.connect_timeout = 3
    settings.networking.request_timeout = 10
    settings.watching.server_timeout = 45
    settings.watching.client_timeout = 60

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        inside = kopf.login_with_service_account(**arguments)
        # kopf's login alone needs cluster DNS.
        return dataclasses.replace(inside, server=server) if inside else kopf.login_with_kubeconfig(**arguments)

    loop = asyncio.get_running_loop()

    def look() -> None:
        loop.call_soon_threadsafe(wake.set)

    pools.register(registry, look)
    nodes.register(registry, look)
    # kopf runs in its own thread. In this thread it would handle the signals, and report our tasks as its own that
    # hang.
    stop = threading.Event()
    try:
        await asyncio.to_thread(
            kopf.run, registry=registry, settings=settings, standalone=True, clusterwide=True, stop_flag=stop
        )
        raise RuntimeError("kopf ended by itself; its log says why")
    finally:
        stop.set()


if __name__ == "__main__":
    sys.exit(main())
