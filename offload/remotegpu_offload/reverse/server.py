"""Serves applications over HTTPS: `/v1/apps/NAME` is a signed manifest, `/v1/pages/SHA256` a file by its hash.

The server opens only files that a manifest lists, through a table of hashes, so that no request contains a path. There
are two more paths: `/v1/apps` lists the names, and `/remotegpu.pyz` is the client for machines that have only Python.
"""

import hmac
import json
import os
import re
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Final

from remotegpu_offload.files.opening import open_regular
from remotegpu_offload.reverse.manifest import Envelope, Manifest

# Most bytes of small pages in one answer; the client requests the others again.
BATCH_BYTES: Final = 32 << 20
_LARGEST_REQUEST: Final = 8 << 20
_CHUNK: Final = 1 << 20
_IDLE_SECONDS: Final = 60.0
# How long a manifest is used before the folder is searched again for changes, in seconds.
FRESH_SECONDS: Final = 1.0
_PAGE: Final = re.compile(r"/v1/pages/([0-9a-f]{64})")
_APP: Final = re.compile(r"/v1/apps/([^/]+)")


@dataclass(slots=True)
class Counters:
    """Counts of the server's answers, for tests and the log."""

    requests: int = 0
    pages: int = 0
    bytes_out: int = 0


@dataclass
class Shelf:
    """The published applications. `collect` makes a folder's manifest, `sign` its envelope; both may be slow."""

    collect: Mapping[str, Callable[[], Manifest]]
    folders: Mapping[str, Path]
    sign: Callable[[Manifest], Envelope]
    clock: Callable[[], float] = time.time
    _current: dict[str, tuple[float, Manifest, bytes]] = field(default_factory=dict)
    # Pages of earlier manifests stay available while their files are unchanged, for clients that are still running.
    _pages: dict[str, tuple[str, int]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def envelope(self, name: str) -> bytes | None:
        """Returns the signed manifest of the folder's current content; None if the application does not exist."""
        if name not in self.collect:
            return None
        with self._lock:
            now = self.clock()
            known = self._current.get(name)
            if known is None or not 0 <= now - known[0] < FRESH_SECONDS:
                self._current[name] = known = self._look(name, now, known)
            return known[2]

    def _look(
        self, name: str, now: float, known: tuple[float, Manifest, bytes] | None
    ) -> tuple[float, Manifest, bytes]:
        found = self.collect[name]()
        if known is not None and replace(found, issued=known[1].issued) == known[1]:
            return now, known[1], known[2]
        # The time of issue is the version, so different contents must have different times.
        found = replace(found, issued=max(int(now), known[1].issued + 1 if known else 0))
        root = os.path.realpath(self.folders[name])
        self._pages |= {file.sha256: (f"{root}/{path}", file.size) for path, file in found.files.items()}
        return now, found, self.sign(found).to_bytes()

    def page(self, sha256: str) -> tuple[BinaryIO, int] | None:
        """Opens the file with a page, and returns its size too; None if it is missing or has another size.

        The content may have changed since; the client checks it.
        """
        place = self._pages.get(sha256)
        if place is None:
            return None
        path, size = place
        try:
            opened = os.fdopen(open_regular(path, os.O_RDONLY), "rb")
        except OSError:
            return None
        if os.fstat(opened.fileno()).st_size != size:
            opened.close()
            return None
        return opened, size


class Server(ThreadingHTTPServer):
    """Serves applications until `shutdown`. `token`: the token that clients must send; "": none."""

    daemon_threads = True
    # A burst of clients must not be rejected; the default is 5.
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], shelf: Shelf, *, bootstrap: bytes, tls: ssl.SSLContext | None, token: str = ""
    ) -> None:
        self.shelf = shelf
        self.bootstrap = bootstrap
        self.tls = tls
        self.token = token
        self.counters = Counters()
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Reports errors, except OSError: it usually means that a client disconnected or rejected the certificate."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        name = str(host)
        return f"{'https' if self.tls else 'http'}://{f'[{name}]' if ':' in name else name}:{port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "remotegpu"
    timeout = _IDLE_SECONDS
    # Small answers must not wait for an acknowledgement of the client.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        if self.server.tls is not None:
            # The handshake runs in this connection's thread, so that a silent client delays no other.
            self.request.settimeout(_IDLE_SECONDS)
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            # http.server itself closes only the socket below TLS.
            self.request.close()

    def do_GET(self) -> None:
        self.server.counters.requests += 1
        if self.path == "/remotegpu.pyz":
            self._answer(self.server.bootstrap, "application/zip")
        elif not self._may():
            self._refuse(401, "this server wants a token: give it by --token-file or REMOTEGPU_TOKEN")
        elif self.path == "/v1/apps":
            self._answer(json.dumps(sorted(self.server.shelf.collect)).encode())
        elif found := _APP.fullmatch(self.path):
            self._send_envelope(found[1])
        elif found := _PAGE.fullmatch(self.path):
            self._send_page(found[1])
        else:
            self._refuse(404, "there is no such thing here")

    def do_POST(self) -> None:
        """Answers `/v1/pages` with a list of hashes: sends the first pages of the list that fit into one answer."""
        self.server.counters.requests += 1
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LARGEST_REQUEST:
            self.close_connection = True
            self._refuse(413, "the request is too large")
            return
        body = self.rfile.read(int(length))
        if not self._may():
            self._refuse(401, "this server wants a token: give it by --token-file or REMOTEGPU_TOKEN")
            return
        wanted = _hashes(body)
        if self.path != "/v1/pages" or wanted is None:
            self._refuse(400, "this is no list of pages")
            return
        answer = bytearray()
        for digest, content in self._contents(wanted):
            answer += f"{digest} {len(content)}\n".encode() + content
            self.server.counters.pages += 1
        self._answer(bytes(answer))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name is http.server's)
        """Logs nothing: `counters` holds the figures."""

    def _contents(self, wanted: list[str]) -> Iterator[tuple[str, bytes]]:
        left = BATCH_BYTES
        for digest in wanted:
            page = self.server.shelf.page(digest)
            if page is None:
                continue
            file, size = page
            with file:
                if size > left:
                    return
                left -= size
                yield digest, file.read()

    def _send_envelope(self, name: str) -> None:
        envelope = self.server.shelf.envelope(name)
        if envelope is None:
            known = ", ".join(sorted(self.server.shelf.collect))
            self._refuse(404, f"no application is called {name[:64]!r} here; there are: {known}")
        else:
            self._answer(envelope)

    def _send_page(self, digest: str) -> None:
        page = self.server.shelf.page(digest)
        if page is None:
            self._refuse(404, "this page is not here any more: the application has changed, open it again")
            return
        file, size = page
        with file:
            self._head(200, size, "application/octet-stream")
            self.server.counters.pages += 1
            while chunk := file.read(_CHUNK):
                self.wfile.write(chunk)
                self.server.counters.bytes_out += len(chunk)

    def _may(self) -> bool:
        shown = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        return not self.server.token or hmac.compare_digest(shown.encode(), self.server.token.encode())

    def _answer(self, content: bytes, kind: str = "application/json") -> None:
        self._head(200, len(content), kind)
        self.wfile.write(content)
        self.server.counters.bytes_out += len(content)

    def _refuse(self, status: int, sentence: str) -> None:
        content = sentence.encode()
        self._head(status, len(content), "text/plain; charset=utf-8")
        self.wfile.write(content)

    def _head(self, status: int, length: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def _hashes(body: bytes) -> list[str] | None:
    try:
        wanted = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return wanted if isinstance(wanted, list) and all(isinstance(one, str) for one in wanted) else None
