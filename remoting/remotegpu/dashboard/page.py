"""The page's files, and parts that all its servers share."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from remotegpu.dashboard.state import Snapshot
from remotegpu.paths import find_dist

STATIC: Final = Path(__file__).parent / "static"
# The API server drops Authorization when it passes a request on to a service, as through `kubectl proxy`.
TOKEN_HEADER: Final = "X-Remotegpu-Token"  # noqa: S105 (its name)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
INTERVAL_SECONDS: Final = 1.0
# Keeps proxies from closing a quiet stream.
_QUIET_SECONDS: Final = 15.0
# The page's module that is not ours.
VENDORED: Final = "/static/vendor/htm.js"


def vendored() -> Path:
    """Returns the module's file. Raises FileNotFoundError if the build has not put it there."""
    file = find_dist().dashboard / "htm.js"
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist: build it with `make build`")
    return file


def token_of(headers: Mapping[str, str]) -> str:
    """Returns the token; empty if there is none. Only from a header, which no other site's page can send."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return headers.get(TOKEN_HEADER, "") or (token.strip() if scheme.lower() == "bearer" else "")


def event(value: Any) -> bytes:
    """Returns a message of the stream."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


class Feed:
    """The messages for a page that shows `sent`; `next` is called each `INTERVAL_SECONDS`."""

    def __init__(self, sent: Snapshot) -> None:
        self._sent = sent
        self._quiet = 0.0

    def next(self, seen: Snapshot) -> bytes:
        """Returns the next message; empty if there is none."""
        self._quiet += INTERVAL_SECONDS
        if changes := seen.since(self._sent):
            told = event({"changes": changes})
        elif self._quiet < _QUIET_SECONDS:
            return b""
        else:
            told = b":\n\n"
        self._sent, self._quiet = seen, 0.0
        return told
