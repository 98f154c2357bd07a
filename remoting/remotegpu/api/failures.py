"""Failures of an appliance's control service. Apart from its clients, which import gRPC."""

import enum


class Failure(enum.Enum):
    """The kind of a failure, for exit codes."""

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
