"""Serves the dashboard of an appliance without a cluster, in threads like `probes.py`.

Read-only. A token is accepted only in a header.
"""

import asyncio
import concurrent.futures
import contextlib
import datetime
import json
import mimetypes
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

import grpc

from remotegpu.api.addresses import is_loopback
from remotegpu.appliance.http import visitors
from remotegpu.appliance.http.visitors import Server
from remotegpu.appliance.leases.authority import Caller
from remotegpu.appliance.refusal import RefusalError
from remotegpu.dashboard import page
from remotegpu.dashboard.load import Reading, load_of
from remotegpu.dashboard.standalone import current, named
from remotegpu.dashboard.state import Scope, Snapshot
from remotegpu.rpc import pb

_LOOP_SECONDS: Final = 5.0
_LOAD_SECONDS: Final = 4.0
_MOST_STREAMS: Final = 200
_EVERYTHING: Final = Scope(None, pools=True)
_STATUS: Final = {grpc.StatusCode.UNAUTHENTICATED: 401, grpc.StatusCode.PERMISSION_DENIED: 403}
_CODE: Final = {
    **{status: code for code, status in _STATUS.items()},
    404: grpc.StatusCode.NOT_FOUND,
    503: grpc.StatusCode.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Source:
    """The data of the page, and the check of permissions."""

    inventory: Callable[[str | None], pb.InventoryReply]  # one owner's leases; None: all. Any thread may call it
    onlooker: Callable[[Caller], Awaitable[str | None]]  # `Authority.onlooker`; called in the event loop
    refused: Callable[[str, str, RefusalError], None]  # `Refusals.note`; called in the event loop
    wants_token: bool


class NotServedError(Exception):
    """An HTTP error with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Dashboard:
    """The HTTP server of the page. Raises OSError if the address or the certificate cannot be used."""

    def __init__(
        self,
        address: tuple[str, int],
        certificate: tuple[Path, Path] | None,
        source: Source,
        turned_away: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        # Without tokens, only the loopback address protects the page.
        self._guarded = not source.wants_token and is_loopback(address[0])
        self._host = address[0]
        self._machine = socket.gethostname()
        self._loop = asyncio.get_running_loop()
        self._files = {f"/static/{file.name}": file for file in page.STATIC.iterdir()}
        self._reading: Reading | None = None
        self._read = threading.Lock()
        self._streams = threading.BoundedSemaphore(_MOST_STREAMS)
        self._stopping = threading.Event()
        self._server = Server(address, self._handler(), _tls(certificate), turned_away)
        self._thread = threading.Thread(target=self._server.serve_forever, name="dashboard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[visitors.Handler]:
        dashboard = self

        class Handler(visitors.Handler):
            def do_GET(self) -> None:  # noqa: N802
                # The client may close the connection at any time.
                with contextlib.suppress(OSError):
                    try:
                        dashboard._answer(self)
                    except NotServedError as error:
                        dashboard._note(self, error)
                        said = json.dumps({"error": str(error)}).encode()
                        more = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
                        _send(self, error.status, "application/json", said, **more)

            def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
                del explain
                # The library uses 501 for any other method.
                status, said = (405, "the page only reads: GET") if code == 501 else (code, message or "")
                dashboard._note(self, NotServedError(status, said))
                with contextlib.suppress(OSError):
                    _send(self, status, "application/json", json.dumps({"error": said}).encode(), Allow="GET")

            def log_message(self, *_: object) -> None:
                """Logs nothing, since an open page sends a request every second."""

        return Handler

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        self._check_host(request)
        path = request.path.partition("?")[0]
        if path in ("/", page.VENDORED) or path in self._files:
            return _send_file(request, self._file(path))
        match path:
            case "/api/about":
                return _send_json(request, {"of": "appliance", "signIn": self._source.wants_token})
            case "/api/snapshot":
                return _send_json(request, self._seen_by(self._reader(request)).to_object())
            case "/api/load":
                return _send_json(request, self._load(self._reader(request)))
            case "/api/events":
                return self._stream(request)
        raise NotServedError(404, f"there is no {path}")

    def _check_host(self, request: BaseHTTPRequestHandler) -> None:
        """Refuses an unknown Host header: another site may let its name resolve to this machine (DNS rebinding)."""
        host = request.headers.get("Host", "").rpartition(":")[0] or request.headers.get("Host", "")
        if self._guarded and host not in (self._host, "localhost", "127.0.0.1", "[::1]"):
            raise NotServedError(403, f"this page has no name {host!r}: open it by the address of --dashboard")

    def _file(self, path: str) -> Path:
        if path == "/":
            return page.STATIC / "index.html"
        if path != page.VENDORED:
            return self._files[path]
        try:
            return page.vendored()
        except FileNotFoundError as error:
            raise NotServedError(404, str(error)) from None

    def _reader(self, request: BaseHTTPRequestHandler) -> str | None:
        """Returns the owner whose leases the request may see; None: all leases. Raises NotServedError."""
        host, port = request.client_address[:2]
        caller = Caller("dashboard", f"{host}:{port}", page.token_of(dict(request.headers)))

        async def ask() -> str | None:
            return await self._source.onlooker(caller)

        asked = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        try:
            return asked.result(_LOOP_SECONDS)
        except RefusalError as error:
            raise NotServedError(_STATUS.get(error.code, 503), str(error)) from None
        except concurrent.futures.TimeoutError:
            asked.cancel()
            raise NotServedError(503, "the appliance does not answer: try again") from None

    def _note(self, request: BaseHTTPRequestHandler, error: NotServedError) -> None:
        host, port = request.client_address[:2]
        refusal = RefusalError(_CODE.get(error.status, grpc.StatusCode.INVALID_ARGUMENT), str(error))
        # The event loop may have ended already.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._source.refused, "dashboard", f"{host}:{port}", refusal)

    def _seen_by(self, owner: str | None) -> Snapshot:
        now = datetime.datetime.now(datetime.UTC)
        return current(named(self._source.inventory(owner)), self._machine, now)

    def _load(self, owner: str | None) -> dict[str, Any]:
        with self._read:
            now = time.monotonic()
            if self._reading is None or now - self._reading.at >= _LOAD_SECONDS:
                self._reading = Reading.after(self._reading, self._source.inventory(None), now)
            seen = replace(self._reading, inventory=named(self._source.inventory(owner)))
            return load_of({"appliance": seen}, _EVERYTHING, now)

    def _stream(self, request: BaseHTTPRequestHandler) -> None:
        """Sends the whole state, then changes, at most once a second, as long as the reader has permission."""
        owner = self._reader(request)
        if not self._streams.acquire(blocking=False):
            raise NotServedError(503, f"{_MOST_STREAMS} pages are open already: close some, or try later")
        try:
            first = self._seen_by(owner)
            _begin(request, 200, "text/event-stream")
            user = owner or ("an administrator" if self._source.wants_token else "this machine")
            request.wfile.write(page.event({"user": user, **first.to_object()}))
            feed = page.Feed(first)
            while not self._stopping.wait(page.INTERVAL_SECONDS):
                if told := feed.next(self._seen_by(self._reader(request))):
                    request.wfile.write(told)
        except NotServedError as error:
            self._note(request, error)
            request.wfile.write(page.event({"error": str(error)}))
        finally:
            self._streams.release()


def _tls(certificate: tuple[Path, Path] | None) -> Callable[[socket.socket], socket.socket]:
    if certificate is None:
        return lambda connection: connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(*certificate)
    # The thread of the connection does the handshake, at its first read.
    return partial(context.wrap_socket, server_side=True, do_handshake_on_connect=False)


def _begin(request: BaseHTTPRequestHandler, status: int, kind: str, **more: str) -> None:
    request.send_response(status)
    for name, value in {**page.HEADERS, "Content-Type": kind, **more}.items():
        request.send_header(name, value)
    request.end_headers()


def _send(request: BaseHTTPRequestHandler, status: int, kind: str, body: bytes, **more: str) -> None:
    _begin(request, status, kind, **{"Content-Length": str(len(body)), **more})
    request.wfile.write(body)


def _send_json(request: BaseHTTPRequestHandler, value: Any) -> None:
    _send(request, 200, "application/json", json.dumps(value).encode())


def _send_file(request: BaseHTTPRequestHandler, file: Path) -> None:
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    _send(request, 200, kind, file.read_bytes())
