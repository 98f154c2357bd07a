"""Runs the dashboard next to the operator, in its own thread with its own event loop and connections."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from remotegpu_operator.appliances.tokens import tokens
from remotegpu_operator.cluster.kube import Api, configuration
from remotegpu_operator.dashboard.live import Live
from remotegpu_operator.dashboard.loads import Loads
from remotegpu_operator.dashboard.server import Dashboard
from remotegpu_operator.dashboard.usage import Recorded
from remotegpu_operator.serving.beside import beside
from remotegpu_operator.serving.door import runner_of
from remotegpu_operator.serving.probes import EVERYWHERE
from remotegpu_operator.settings import Settings

_log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[None]:
    """Serves the dashboard inside the `async with` block if the settings have a port for it.

    A failure of the dashboard is only logged, so that it does not stop pools and claims.
    """
    port = settings.dashboard_port
    if port is None:
        yield
        return
    task = asyncio.create_task(beside(lambda: _serve(settings, port)))
    task.add_done_callback(_tell)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("the dashboard is not served any more; it is when this pod is started anew", exc_info=error)


async def _serve(settings: Settings, port: int) -> None:
    async with Api(await configuration()) as api:
        live = Live(api)
        loads = Loads(
            api,
            settings.namespace,
            tokens(api, settings.namespace, settings.token_file, settings.pod),
            live.appliances,
        )
        dashboard = Dashboard(api, live, Recorded(api, settings.namespace), loads)
        runner = runner_of(dashboard.application(), shutdown_timeout=1)
        await runner.setup()
        try:
            assert runner.server is not None
            async with dashboard.door.open(runner.server, EVERYWHERE, port):  # requests come through a Service
                _log.info("dashboard on port %d", port)
                await live.run()
        finally:
            await runner.cleanup()
            loads.close()
