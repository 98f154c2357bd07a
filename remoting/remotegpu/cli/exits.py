"""Exit codes (those of sysexits.h where there is one), and the error that carries one."""

from typing import Final

from remotegpu.api.failures import Failure

USAGE: Final = 2  # the request makes no sense
# A program deviates from a recording, or launches no kernel that matches a null GPU's rule.
DIVERGED: Final = 65
UNAVAILABLE: Final = 69  # no appliance, or not what it should be
SOFTWARE: Final = 70  # a part of remotegpu is missing or broke
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
    """One line for stderr, and the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class SaidError(CliError):
    """A program of ours ended with this code, and has printed the reason."""

    def __init__(self, code: int) -> None:
        super().__init__(code, "")
