"""Failures of an appliance's control service. A module of its own, because the clients import gRPC."""

import enum


class Failure(enum.Enum):
    """The kind of a failure, for exit codes."""

    UNAVAILABLE = enum.auto()
    DENIED = enum.auto()
    BUSY = enum.auto()
    MISMATCH = enum.auto()
    INVALID = enum.auto()


class ApplianceError(Exception):
    """A failed call of an appliance. The message is one line: cause, the thing at fault, next step."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure
