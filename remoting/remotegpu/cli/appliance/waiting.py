"""Shows the user why a command waits."""

import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.status import Status

_TELL_AGAIN_SECONDS: Final = 30.0


class WaitNotice:
    """Shows on stderr why and how long a command waits: a live line on a terminal, else a line every 30 seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since = time.monotonic()
        self._status: Status | None = None
        self._told = ("", 0.0)

    def show(self, reason: str) -> None:
        waited = time.monotonic() - self._since
        text = f"waiting {waited:.0f} s {self._what}: {reason}"
        if sys.stderr.isatty():
            self._show_live(text)
            return
        told, when = self._told
        if reason != told or waited >= when + _TELL_AGAIN_SECONDS:
            self._told = (reason, waited)
            print(f"remotegpu: {text}", file=sys.stderr, flush=True)  # noqa: T201

    def _show_live(self, text: str) -> None:
        if self._status is None:
            # Imported only here: a command that does not wait needs no rich.
            from rich.console import Console  # noqa: PLC0415

            self._status = Console(stderr=True, markup=False).status("")
            self._status.start()
        self._status.update(text)

    def end(self) -> None:
        if self._status is not None:
            self._status.stop()
