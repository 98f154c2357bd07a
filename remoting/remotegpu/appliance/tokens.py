"""The tokens that may ask for a share: a file with one `name:token` a line, read again when it changes."""

import hashlib
import hmac
import logging
from pathlib import Path

_log = logging.getLogger(__name__)


def parse_tokens(text: str) -> dict[str, str]:
    """Names by the hash of their token; comparing hashes takes the same time whatever the token is."""
    names = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        name, colon, token = entry.partition(":")
        if not colon or not name.strip() or not token.strip():
            raise ValueError(f"line {number} is not of the form name:token")
        names[_digest(token.strip())] = name.strip()
    return names


class TokenFile:
    """Answers whose token it is. A file that cannot be read later keeps the last good content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._stamp_now()
        self._names = parse_tokens(path.read_text())

    def name_of(self, token: str) -> str | None:
        self._reload()
        digest = _digest(token)
        found = None
        for known, name in self._names.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def _reload(self) -> None:
        try:
            stamp = self._stamp_now()
            if stamp != self._stamp:
                self._names = parse_tokens(self._path.read_text())
                self._stamp = stamp
        except (OSError, ValueError) as error:
            _log.error("the token file %s is not read again, the old tokens stay: %s", self._path, error)

    def _stamp_now(self) -> tuple[int, int, int]:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
