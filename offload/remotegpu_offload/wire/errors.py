"""Errors between a program and its acceptor."""

import signal
from typing import Any


class OffloadError(RuntimeError):
    """The cause, what is at fault, and the next step, in one sentence."""


class FrameError(OffloadError):
    """The received bytes are not a frame, or a frame is larger than the wire allows."""


class LostError(OffloadError):
    """The other side is gone; requests to it will not be answered."""

    _during = ""

    def during(self, what: str) -> "LostError":
        """Returns the same error with the request that was lost: "in the call of m.f". Itself where it says so
        already."""
        if self._during or not what:
            return self
        named = LostError(f"{self} [{what}]")
        named._during = what
        return named


class RemoteFailure(OffloadError):  # noqa: N818 - the other side failed, not the wire
    """The other side answered a request with a failure."""

    def __init__(self, error: str, details: dict[str, Any]) -> None:
        super().__init__(error)
        self.error = error
        self.details = details

    def __reduce__(self) -> tuple[type["RemoteFailure"], tuple[str, dict[str, Any]]]:
        return RemoteFailure, (self.error, self.details)


def how_ended(exit_code: int) -> str:
    """Says why the other side has closed the connection: `exit_code` of its process, or minus the signal that ended
    it."""
    if exit_code > 0:
        return f"its process ended with exit code {exit_code}"
    if exit_code == 0:
        return "it closed the connection"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"its process died by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
