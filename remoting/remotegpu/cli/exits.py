"""Exit codes, from sysexits.h where possible, and errors that carry an exit code."""

from typing import Final

from remotegpu.api.failures import Failure

USAGE: Final = 2  # the command line or a value in it is invalid
# A program deviates from its recording, or a rule of a null GPU matched no kernel.
DIVERGED: Final = 65
UNAVAILABLE: Final = 69  # no appliance or cluster can be used
SOFTWARE: Final = 70  # a part of remotegpu is missing or failed
BUSY: Final = 75  # the share is not available
MISMATCH: Final = 76  # versions do not fit
DENIED: Final = 77  # the token is missing or wrong
NOT_EXECUTABLE: Final = 126  # the code that shells use
NOT_FOUND: Final = 127

OF_FAILURE: Final = {
    Failure.UNAVAILABLE: UNAVAILABLE,
    Failure.DENIED: DENIED,
    Failure.BUSY: BUSY,
    Failure.MISMATCH: MISMATCH,
    Failure.INVALID: USAGE,
}


class CliError(Exception):
    """An error of a command: one line for stderr, and the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class SaidError(CliError):
    """An error whose reason another program of ours has already printed; only the exit code is left."""

    def __init__(self, code: int) -> None:
        super().__init__(code, "")
