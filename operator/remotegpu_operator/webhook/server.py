"""Serves the webhook: admission requests over TLS, and probes and metrics over plain HTTP."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Final

from aiohttp import web
from prometheus_client import Gauge, Histogram

from remotegpu.api.lines import one_line
from remotegpu_operator.serving import probes
from remotegpu_operator.serving.door import Door, Places, runner_of
from remotegpu_operator.webhook import body
from remotegpu_operator.webhook.mutate import ReviewError, answer
from remotegpu_operator.webhook.rules import PODS_PATH, TEMPLATES_PATH

log = logging.getLogger(__name__)

RELOAD_SECONDS: Final = 5.0
# An API server has up to 600 requests in progress (--max-requests-inflight and --max-mutating-requests-inflight), each
# on its own connection. `waiting` is for its idle connections and for those of other clients.
PLACES: Final = Places(waiting=512, waiting_of_peer=320, answering=1280, answering_of_peer=640)
# The time for a client that still sends its request when it has got the answer.
_LINGER_SECONDS: Final = 2.0
# The most characters of a text from a review in a line of the log.
_MOST_SHOWN: Final = 400

SECONDS: Final = Histogram(
    "remotegpu_webhook_seconds",
    "From the arrival of an admission request's head until its answer was ready",
    ["path", "outcome"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 1),
)
CERTIFICATE_LOADED: Final = Gauge("remotegpu_webhook_certificate_loaded_seconds", "When the certificate was last read")


@dataclass
class Certificate:
    """The certificate and key in a Secret's volume. They are loaded again when the kubelet replaces the files.

    The files may be created after the start of the webhook.
    """

    folder: Path
    context: ssl.SSLContext = field(default_factory=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    loaded: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3

    def load(self) -> None:
        """Loads the files for new connections. If they cannot be loaded, logs a warning and keeps the last ones."""
        files = [self.folder / name for name in ("tls.crt", "tls.key")]
        try:
            found = tuple(file.stat().st_mtime_ns for file in files)
            if found == self.loaded:
                return
            self.context.load_cert_chain(files[0], files[1])
        except OSError as problem:  # ssl.SSLError is one
            log.warning(
                "no certificate in %s: %s; the operator writes Secret remotegpu-webhook-tls", self.folder, problem
            )
            return
        self.loaded = found
        CERTIFICATE_LOADED.set_to_current_time()
        log.info("certificate read from %s", self.folder)

    async def keep_loaded(self) -> None:
        while True:
            self.load()
            await asyncio.sleep(RELOAD_SECONDS)


@dataclass
class Webhook:
    certificate: Certificate
    bodies: body.Bodies = field(default_factory=body.Bodies)
    door: Door = field(default_factory=lambda: Door(PLACES))
    stopping: bool = False

    def admission(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.post(path, self.door.counted(self._review)) for path in (PODS_PATH, TEMPLATES_PATH)])
        return app

    async def _review(self, request: web.Request) -> web.Response:
        started, outcome = perf_counter(), "error"
        try:
            review = body.parse(await self.bodies.read(request))
            result = answer(review)
            outcome = "allowed" if result["response"]["allowed"] else "refused"
            if outcome == "refused":
                _log_refusal(review["request"], result["response"]["status"]["message"])
            response = web.json_response(result)
        except (ReviewError, ValueError) as problem:
            response = web.Response(status=400, text=f"{problem}\n")
        finally:
            SECONDS.labels(request.path, outcome).observe(perf_counter() - started)
        if self.stopping:
            response.force_close()  # the API server's next request goes to another replica
        return response

    def not_ready(self) -> str:
        if self.stopping:
            return "stopping"
        return "" if self.certificate.loaded else f"no certificate in {self.certificate.folder} yet"


def _log_refusal(request: dict[str, object], message: str) -> None:
    kind, user = request.get("kind"), request.get("userInfo")
    # The texts may be anything, because any pod of the cluster can send a request.
    said = (
        kind.get("kind") if isinstance(kind, dict) else "",
        request.get("namespace", ""),
        request.get("name", ""),
        user.get("username") if isinstance(user, dict) else "",
        message,
    )
    log.info(
        "refused %s %s/%s of %s: %s",
        *(one_line(each, _MOST_SHOWN) for each in said),
    )


@contextlib.asynccontextmanager
async def serving(
    webhook: Webhook, host: str | None, port: int, http_port: int, reuse_port: bool = False
) -> AsyncIterator[None]:
    """Serves both ports inside the `async with` block. With `reuse_port`, other processes may share `port`."""
    runners = [
        runner_of(app, lingering_time=_LINGER_SECONDS)
        for app in (webhook.admission(), probes.application(webhook.not_ready))
    ]
    reloading = asyncio.create_task(webhook.certificate.keep_loaded())
    try:
        for runner in runners:
            await runner.setup()
        tls = webhook.certificate.context
        await web.TCPSite(runners[1], host, http_port).start()
        assert runners[0].server is not None
        async with webhook.door.open(runners[0].server, host, port, tls, reuse_port=reuse_port):
            yield
    finally:
        reloading.cancel()
        for runner in runners:
            await runner.cleanup()
