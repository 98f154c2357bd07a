"""Health probes and metrics over plain HTTP."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from remotegpu.api import addresses
from remotegpu_deviceplugin.plugin import Plugin

_TYPE: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class Figures(Collector):
    """Metrics of each resource: the number of devices, and whether the kubelet has a stream open."""

    def __init__(self, plugins: Sequence[Plugin]) -> None:
        self._plugins = plugins

    def collect(self) -> list[Metric]:
        devices = GaugeMetricFamily(
            "remotegpu_node_devices", "Devices of a resource that this node offers to the kubelet", labels=["resource"]
        )
        watched = GaugeMetricFamily(
            "remotegpu_kubelet_listens", "1 while the kubelet listens for a resource", labels=["resource"]
        )
        for plugin in self._plugins:
            devices.add_metric([plugin.resource], plugin.count or 0)
            watched.add_metric([plugin.resource], plugin.watched)
        return [devices, watched]


@contextlib.asynccontextmanager
async def served(address: str, plugins: Sequence[Plugin]) -> AsyncIterator[None]:
    """Serves `/healthz`, `/readyz` and `/metrics` at `address` ("[ADDRESS]:PORT") inside the `async with` block.

    Ready means that the kubelet has a stream open for every resource.
    """
    registry = CollectorRegistry()
    registry.register(Figures(plugins))

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if missing := [plugin.resource for plugin in plugins if not plugin.watched]:
            return web.Response(status=503, text=f"the kubelet does not listen for {', '.join(missing)} yet\n")
        return web.Response(text="ok\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers=_TYPE)

    app = web.Application()
    app.add_routes([web.get(f"/{handler.__name__}", handler) for handler in (healthz, readyz, metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        host, port = addresses.split(f"[{addresses.EVERYWHERE}]{address}" if address.startswith(":") else address)
        # None means all addresses of IPv4 and IPv6: the pod may have either.
        await web.TCPSite(runner, None if host == addresses.EVERYWHERE else host, port).start()
        yield
    finally:
        await runner.cleanup()
