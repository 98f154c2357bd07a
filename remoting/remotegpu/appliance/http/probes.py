"""Plain HTTP for kubelet and Prometheus: /healthz, /readyz, /metrics. Threads serve it, to report a hanging loop."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from remotegpu.appliance.http import visitors

_LOOP_SECONDS: Final = 2.0
_TEXT: Final = "text/plain; charset=utf-8"


class HttpServer:
    """The server. It calls `problem` in the event loop, which returns why the appliance is not ready, or ""."""

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        problem: Callable[[], str],
        turned_away: Callable[[], None] = lambda: None,
    ) -> None:
        self._registry = registry
        self._problem = problem
        self._loop = asyncio.get_running_loop()
        self._server = visitors.Server(address, self._handler(), turned_away=turned_away)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Returns status, content type and body of the response."""
        match path.partition("?")[0]:
            case "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)
            case "/healthz":
                return (200, _TEXT, b"ok\n") if self._ask() is not None else (503, _TEXT, b"the event loop hangs\n")
            case "/readyz":
                problem = self._ask()
                if problem is None:
                    problem = "the event loop hangs"
                return (503, _TEXT, f"{problem}\n".encode()) if problem else (200, _TEXT, b"ok\n")
            case _:
                return 404, _TEXT, b"there is /healthz, /readyz and /metrics\n"

    def _ask(self) -> str | None:
        """Returns the result of `problem`; None if the event loop hangs."""

        async def ask() -> str:
            return self._problem()

        answer = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        try:
            return answer.result(_LOOP_SECONDS)
        except concurrent.futures.TimeoutError:
            answer.cancel()
            return None

    def _handler(self) -> type[visitors.Handler]:
        answer = self.answer

        class Handler(visitors.Handler):
            def do_GET(self) -> None:  # noqa: N802
                status, kind, body = answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                # The client may have closed the connection.
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Logs nothing, since a probe comes every few seconds."""

        return Handler
