"""Errors of the connection between a program and its acceptor."""

import signal
from typing import Any


class OffloadError(RuntimeError):
    """The base class of offload's errors. The message names the cause, the object concerned and a remedy."""


class FrameError(OffloadError):
    """The received bytes are not a frame, or a frame is larger than the protocol allows."""


class LostError(OffloadError):
    """The other side is lost; it will not answer requests."""

    _during = ""

    def during(self, what: str) -> "LostError":
        """Returns the error with the interrupted request, such as "in the call of m.f".

        Returns itself if it names one already.
        """
        if self._during or not what:
            return self
        named = LostError(f"{self} [{what}]")
        named._during = what
        return named


class RemoteFailure(OffloadError):  # noqa: N818 - the other side failed, not the connection
    """The other side answered a request with a failure."""

    def __init__(self, error: str, details: dict[str, Any]) -> None:
        super().__init__(error)
        self.error = error
        self.details = details

    def __reduce__(self) -> tuple[type["RemoteFailure"], tuple[str, dict[str, Any]]]:
        return RemoteFailure, (self.error, self.details)


def how_ended(exit_code: int) -> str:
    """Says why the other side has closed the connection.

    `exit_code`: that of its process, or minus the signal that ended the process.
    """
    if exit_code > 0:
        return f"its process ended with exit code {exit_code}"
    if exit_code == 0:
        return "it closed the connection"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"its process died by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
