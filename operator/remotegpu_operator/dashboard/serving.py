"""The dashboard beside the operator: a thread, an event loop and a connection of its own, and no right to write."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from aiohttp import web

from remotegpu_operator.beside import beside
from remotegpu_operator.dashboard.live import Live
from remotegpu_operator.dashboard.server import Dashboard
from remotegpu_operator.dashboard.usage import Recorded
from remotegpu_operator.kube import Api, configuration

_log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def serving(port: int | None, namespace: str) -> AsyncIterator[None]:
    """None: there is none. Pools and claims are served without it too, so it ends nothing that it fails in."""
    if port is None:
        yield
        return
    task = asyncio.create_task(beside(lambda: _serve(port, namespace)))
    task.add_done_callback(_tell)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _log.error("the dashboard is not served any more; it is when this pod is started anew", exc_info=error)


async def _serve(port: int, namespace: str) -> None:
    async with Api(await configuration()) as api:
        live = Live(api)
        served = Dashboard(api, live, Recorded(api, namespace)).application()
        runner = web.AppRunner(served, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104 (a Service's requests come from outside)
            _log.info("dashboard on port %d", port)
            await live.run()
        finally:
            await runner.cleanup()
