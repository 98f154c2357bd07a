"""The files of the page, and code that all its servers share."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from remotegpu.dashboard.state import Snapshot
from remotegpu.paths import find_dist

STATIC: Final = Path(__file__).parent / "static"
# Used in place of Authorization, which the API server removes when it proxies a request, as with `kubectl proxy`.
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
# The interval of empty messages, which keep proxies from closing a quiet stream.
_QUIET_SECONDS: Final = 15.0
# The URL of the page's only third-party module.
VENDORED: Final = "/static/vendor/htm.js"


def vendored() -> Path:
    """Returns the file of the third-party module. Raises FileNotFoundError if it is not built."""
    file = find_dist().dashboard / "htm.js"
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist: build it with `make build`")
    return file


def token_of(headers: Mapping[str, str]) -> str:
    """Returns the token; empty if there is none. Only headers count, since pages of other sites cannot send them."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return headers.get(TOKEN_HEADER, "") or (token.strip() if scheme.lower() == "bearer" else "")


def event(value: Any) -> bytes:
    """Returns a server-sent event with `value` as JSON."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


class Feed:
    """The messages for a page that shows `sent`. The server must call `next` every INTERVAL_SECONDS."""

    def __init__(self, sent: Snapshot) -> None:
        self._sent = sent
        self._quiet = 0.0

    def next(self, seen: Snapshot) -> bytes:
        """Returns the message with the changes; empty if there is none to send."""
        self._quiet += INTERVAL_SECONDS
        if changes := seen.since(self._sent):
            told = event({"changes": changes})
        elif self._quiet < _QUIET_SECONDS:
            return b""
        else:
            told = b":\n\n"
        self._sent, self._quiet = seen, 0.0
        return told
