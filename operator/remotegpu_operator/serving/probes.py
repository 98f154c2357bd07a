"""/healthz, /readyz and /metrics, of the operator (leader or waiting) and of the webhook."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from remotegpu_operator.serving.door import runner_of

# All addresses of IPv4 and of IPv6, whichever of the two the pod has.
EVERYWHERE: Final = None


def application(not_ready: Callable[[], str]) -> web.Application:
    """Builds the application. `not_ready` returns why this process is not useful now; empty if it is."""

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
    """Serves the application on every address of the pod."""
    runner = runner_of(application(not_ready))
    await runner.setup()
    try:
        await web.TCPSite(runner, EVERYWHERE, port).start()  # kubelet comes from outside the pod
        yield
    finally:
        await runner.cleanup()
