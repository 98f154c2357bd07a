"""A request that is answered with a sentence instead of what it asked for, and the log of such."""

import asyncio
import logging
from collections import Counter
from typing import Final

import grpc

# Lines about one peer in a period.
_MOST: Final = 100
_PERIOD_SECONDS: Final = 60.0

_log = logging.getLogger(__name__)


class RefusalError(Exception):
    """The gRPC status code and one line that says the cause and the next step."""

    def __init__(self, code: grpc.StatusCode, message: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        """`metadata`: for a program."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.metadata = metadata


def refused(message: str) -> RefusalError:
    """For what cannot be done as things are."""
    return RefusalError(grpc.StatusCode.FAILED_PRECONDITION, message)


class RefusalLog:
    """Some lines about each peer; of the others, at the end of a period, how many they are."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def warning(self, peer: str, line: str, *arguments: object) -> None:
        if not self._seen:
            asyncio.get_running_loop().call_later(_PERIOD_SECONDS, self._end_period)
        self._seen[peer] += 1
        if self._seen[peer] <= _MOST:
            _log.warning(line, *arguments)

    def _end_period(self) -> None:
        for peer, count in self._seen.items():
            if count > _MOST:
                _log.warning("audit: %d more refusals of %s are not listed", count - _MOST, peer)
        self._seen.clear()
