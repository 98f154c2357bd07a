"""What an appliance's control service did not do, and why. Apart from what asks it, which imports gRPC."""

import enum


class Failure(enum.Enum):
    """What kind of thing went wrong, for exit codes."""

    UNAVAILABLE = enum.auto()
    DENIED = enum.auto()
    BUSY = enum.auto()
    MISMATCH = enum.auto()
    INVALID = enum.auto()


class ApplianceError(Exception):
    """One line: cause, the thing at fault, next step."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure
