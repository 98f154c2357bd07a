"""Serves /healthz, /readyz and /metrics for the operator, with or without the Lease, and for the webhook."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from remotegpu_operator.serving.door import runner_of

# All addresses of IPv4 and IPv6: the pod may have either.
EVERYWHERE: Final = None


def application(not_ready: Callable[[], str]) -> web.Application:
    """Builds the application. `not_ready` returns why this process is not ready; empty if it is ready."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        why = not_ready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def numbers(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", numbers)])
    return app


@contextlib.asynccontextmanager
async def serve(port: int, not_ready: Callable[[], str]) -> AsyncIterator[None]:
    """Serves the application on every address of the pod inside the `async with` block."""
    runner = runner_of(application(not_ready))
    await runner.setup()
    try:
        await web.TCPSite(runner, EVERYWHERE, port).start()  # the kubelet connects from outside the pod
        yield
    finally:
        await runner.cleanup()
