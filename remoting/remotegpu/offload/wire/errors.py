"""What can go wrong between a program and its acceptor."""

from typing import Any


class OffloadError(RuntimeError):
    """The cause, what is at fault, and the next step, in one sentence."""


class FrameError(OffloadError):
    """What arrived is no frame, or a frame is larger than the wire allows."""


class LostError(OffloadError):
    """The other side is gone; what was asked of it will not be answered."""


class RemoteFailure(OffloadError):  # noqa: N818 - the other side failed, not the wire
    """The other side answered a request with a failure."""

    def __init__(self, error: str, details: dict[str, Any]) -> None:
        super().__init__(error)
        self.error = error
        self.details = details

    def __reduce__(self) -> tuple[type["RemoteFailure"], tuple[str, dict[str, Any]]]:
        return RemoteFailure, (self.error, self.details)
