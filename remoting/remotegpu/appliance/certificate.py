"""The appliance's certificate, read again when its files change: in a cluster it is replaced while programs run."""

import contextlib
import logging
from pathlib import Path

import grpc

_log = logging.getLogger(__name__)


class Certificate:
    """Paths are kept as they were given: a mounted Secret is a link that points elsewhere after each change."""

    def __init__(self, cert: Path, key: Path) -> None:
        self.files = cert, key
        self._stamp = self._stamp_now()
        self._pair = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        configuration = grpc.ssl_server_certificate_configuration([self._pair])
        # That None is "no change" stands in gRPC's documentation, not in its stubs.
        return grpc.dynamic_ssl_server_credentials(configuration, self._changed)  # type: ignore[arg-type]

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """For each handshake, in a thread of gRPC's; None leaves what there is."""
        with contextlib.suppress(OSError):
            stamp = self._stamp_now()
            if stamp != self._stamp:
                self._pair, self._stamp = self._read(), stamp
                _log.info("the certificate %s has changed", self.files[0])
                return grpc.ssl_server_certificate_configuration([self._pair])
        return None

    def _read(self) -> tuple[bytes, bytes]:
        cert, key = self.files
        return key.read_bytes(), cert.read_bytes()

    def _stamp_now(self) -> list[tuple[int, int, int]]:
        return [(now.st_mtime_ns, now.st_size, now.st_ino) for now in (file.stat() for file in self.files)]
