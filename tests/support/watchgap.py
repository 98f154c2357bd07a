"""An HTTP proxy of the API server that ends the watches of a path, and says later that their version is too old."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import aiohttp
from aiohttp import web
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config

_ONE_HOP = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "content-encoding"}
_EXPIRED = 410


class WatchGap:
    """Forwards all requests. `kubeconfig` is the configuration of a client that uses the proxy."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        configuration = kubernetes_client.Configuration()
        kubernetes_config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        self._server = configuration.host
        self._tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        self._tls.load_cert_chain(configuration.cert_file, configuration.key_file)
        self.kubeconfig = folder / "watch-gap.kubeconfig"
        self._watches: defaultdict[str, set[asyncio.Task[object]]] = defaultdict(set)
        # By path: what ends the gap, and the number of watches that have come since it began.
        self._gaps: dict[str, asyncio.Future[tuple[int, int]]] = {}
        self.waiting: defaultdict[str, int] = defaultdict(int)

    def begin(self, path: str) -> None:
        """Ends the watches of a path. Later ones get no answer before `end`."""
        self._loop.call_soon_threadsafe(self._begin, path)

    def end(self, path: str, code: int = _EXPIRED, status: int = 200) -> None:
        """Answers each watch that waits with an error event. With another `status`, the watch itself is refused."""
        self._loop.call_soon_threadsafe(self._end, path, code, status)

    def _begin(self, path: str) -> None:
        self._gaps[path] = self._loop.create_future()
        for task in self._watches[path]:
            task.cancel()

    def _end(self, path: str, code: int, status: int) -> None:
        self._gaps.pop(path).set_result((code, status))

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        watches = "watch" in request.query
        if watches and (gap := self._gaps.get(path)) is not None:
            self.waiting[path] += 1
            code, status = await asyncio.shield(gap)
            error = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Test", "code": code}
            return web.json_response(error if status >= 400 else {"type": "ERROR", "object": error}, status=status)
        task = asyncio.current_task()
        assert task is not None
        if watches:
            self._watches[path].add(task)
        try:
            return await self._answer(request)
        finally:
            self._watches[path].discard(task)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _ONE_HOP}
        url = self._server + request.path_qs
        async with self._session.request(
            request.method,
            url,
            headers=headers,
            data=await request.read() or None,
            ssl=self._tls,
            skip_auto_headers=("Content-Type",),
        ) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _ONE_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):  # the client ends its watch
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
            return response

    async def serve(self, started: threading.Event) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application(client_max_size=1 << 24)
        application.router.add_route("*", "/{path:.*}", self._forward)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0), auto_decompress=True
        ) as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            user = {"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{port}"}}
            context = {"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}
            users = [{"name": "proxy", "user": {}}]
            text = {"clusters": [user], "contexts": [context], "users": users, "current-context": "proxy"}
            self.kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config"} | text))
            started.set()
            await self._over.wait()
            await runner.cleanup()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)


@contextlib.contextmanager
def watch_gap(kubeconfig: Path, folder: Path) -> Iterator[WatchGap]:
    """Runs a proxy of the API server."""
    gap, started = WatchGap(kubeconfig, folder), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(gap.serve(started)))
    thread.start()
    try:
        assert started.wait(20)
        yield gap
    finally:
        gap.stop()
        thread.join()
