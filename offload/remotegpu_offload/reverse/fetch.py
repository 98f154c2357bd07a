"""The client's end of the connection: fetches manifests and pages over HTTP(S), and checks each page before its use."""

import http.client
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from remotegpu_offload.reverse.errors import ReverseError
from remotegpu_offload.reverse.manifest import LARGEST_MANIFEST, File
from remotegpu_offload.reverse.store import Pages, WrongPageError

DEFAULT_PORT: Final = 7080
# Pages up to this size are requested together in one answer.
_SMALL: Final = 4 << 20
_CHUNK: Final = 1 << 20
_CONNECT_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server of applications. `ca`: file with the authority of its certificate; None: the system's authorities."""

    url: str
    ca: Path | None = None
    token: str = ""

    @property
    def place(self) -> str:
        """The address "host:port", for users and as the key of stored decisions."""
        return urlsplit(self.url).netloc


def parse_address(text: str) -> tuple[str, str]:
    """Splits "https://host:7080/app" or "host/app" into the server's URL and the application's name.

    Raises ReverseError.
    """
    whole = text if "://" in text else f"https://{text}"
    parts = urlsplit(whole)
    name = parts.path.strip("/")
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not name or "/" in name or not port:
        raise ReverseError(f"{text!r} names no application: write HOST[:PORT]/NAME, as gpu.example.com/digits")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise ReverseError(
            f"{text!r}: without TLS everybody on the way reads what travels; only servers of this machine are opened "
            "by http. Give the server a certificate (--cert, --key), and write https"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}", name


class Fetcher:
    """One connection to the server, which is reopened after an error. Thread-safe."""

    def __init__(self, server: Server, pages: Pages) -> None:
        self.server = server
        self.pages = pages
        # Number of answered requests.
        self.trips = 0
        self.bytes_in = 0
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None

    def manifest(self, name: str) -> bytes:
        """Fetches an application's envelope, without checking it. Raises ReverseError."""
        with self._lock:
            response = self._ask("GET", f"/v1/apps/{quote(name, safe='')}")
            content = response.read(LARGEST_MANIFEST + 1)
            self._account(len(content))
        if len(content) > LARGEST_MANIFEST:
            raise ReverseError(f"the manifest of {name} is larger than {LARGEST_MANIFEST >> 20} MiB")
        return content

    def fetch(self, files: Mapping[str, File], wanted: Iterable[str]) -> None:
        """Fetches the pages of these files to the disk, except those that are cached. Raises ReverseError."""
        with self._lock:
            missing = {files[path].sha256: path for path in wanted if files[path].sha256 not in self.pages}
            small = [digest for digest, path in missing.items() if files[path].size <= _SMALL]
            while small:
                came = self._batch(small, missing, files)
                if not came:
                    raise self._gone(missing[small[0]])
                small = [digest for digest in small if digest not in came]
            for digest, path in missing.items():
                if digest not in self.pages:
                    self._one(digest, path, files[path].size)

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _batch(self, wanted: list[str], missing: Mapping[str, str], files: Mapping[str, File]) -> set[str]:
        response = self._ask("POST", "/v1/pages", json.dumps(wanted).encode())
        came: set[str] = set()
        while header := response.readline(200):
            digest, _, size = header.decode("ascii", "replace").strip().partition(" ")
            if digest not in missing or digest in came or size != str(files[missing[digest]].size):
                self._drop()
                raise ReverseError(f"{self.server.url} sends what was not asked for: it is no remotegpu server of ours")
            self._store(response, digest, missing[digest], int(size))
            came.add(digest)
        self._account(0)
        return came

    def _one(self, digest: str, path: str, size: int) -> None:
        response = self._ask("GET", f"/v1/pages/{digest}")
        self._store(response, digest, path, size)
        if response.read(1):
            self._drop()
            raise self._tampered(path)
        self._account(0)

    def _store(self, response: http.client.HTTPResponse, digest: str, path: str, size: int) -> None:
        try:
            with self.pages.adding(digest) as file:
                left = size
                while left and (chunk := response.read(min(left, _CHUNK))):
                    file.write(chunk)
                    left -= len(chunk)
        except WrongPageError:
            self._drop()
            raise (self._gone(path) if left else self._tampered(path)) from None
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise self._lost(error) from None
        self.bytes_in += size

    def _ask(self, method: str, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
        """Sends a request and returns the answer, whose status is 200. Raises ReverseError.

        If the server has closed the idle connection, reconnects once.
        """
        for fresh in (False, True):
            if fresh:
                self._drop()
            kept = self._connection is not None
            try:
                connection = self._connection or self._connect()
                self._connection = connection
                headers = {"Authorization": f"Bearer {self.server.token}"} if self.server.token else {}
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                break
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if not kept:
                    raise self._lost(error) from None
        if response.status != 200:
            sentence = response.read(4096).decode("utf-8", "replace")
            self._account(0)
            said = "".join(letter for letter in sentence if letter.isprintable())
            raise ReverseError(f"{self.server.url} refuses ({response.status}): {said}")
        return response

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.server.url)
        assert parts.hostname is not None
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=_CONNECT_SECONDS)
        context = ssl.create_default_context(cafile=str(self.server.ca) if self.server.ca else None)
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_CONNECT_SECONDS, context=context)

    def _account(self, size: int) -> None:
        self.trips += 1
        self.bytes_in += size

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _lost(self, error: Exception) -> ReverseError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ReverseError(
                f"the certificate of {self.server.url} is not accepted: {error.verify_message}; give the authority "
                "that made it by --ca"
            )
        return ReverseError(f"{self.server.url} does not answer: {error or type(error).__name__}; does it run?")

    def _gone(self, path: str) -> ReverseError:
        return ReverseError(
            f"{self.server.url} has no {path} of this version any more: the application was changed; open it again"
        )

    def _tampered(self, path: str) -> ReverseError:
        return ReverseError(
            f"{path} is not what the signed manifest says: it was changed on the server or on the way, and is not run; "
            "open the application again, and if that repeats tell the server's administrator"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
