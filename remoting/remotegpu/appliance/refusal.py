"""Refusals: errors with a sentence for the caller, and the log of them."""

import asyncio
import logging
from collections import Counter
from typing import Final

import grpc
from prometheus_client import Counter as Counted

from remotegpu.api.lines import one_line

# The number of log lines about one peer in a period.
_MOST: Final = 100
_PERIOD_SECONDS: Final = 60.0
_MOST_LINE: Final = 500

_log = logging.getLogger(__name__)


class RefusalError(Exception):
    """A refused request: the gRPC status code, and one line with the cause and the next step."""

    def __init__(
        self, code: grpc.StatusCode, message: str, metadata: tuple[tuple[str, str], ...] = (), *, about: str = ""
    ) -> None:
        """Creates a refusal. `metadata` is for the calling program; `about` has caller and subject, for the log."""
        super().__init__(message)
        self.about = about
        self.code = code
        self.message = message
        self.metadata = metadata


def refused(message: str) -> RefusalError:
    """Returns an error for a request that the current state does not allow (FAILED_PRECONDITION)."""
    return RefusalError(grpc.StatusCode.FAILED_PRECONDITION, message)


class Refusals:
    """Counts all refusals, and logs some lines about each peer.

    At the end of a period it logs the number of the others.
    """

    def __init__(self, counted: Counted) -> None:
        """Starts without refusals. `counted` is a counter with the label `reason`."""
        self._counted = counted
        self._seen: Counter[str] = Counter()

    def note(self, method: str, peer: str, refusal: RefusalError) -> None:
        """Counts and logs a refusal. `peer` is address and port of the caller."""
        # The error with the new place of a moved lease is an ordinary answer.
        if refusal.metadata:
            return
        self._counted.labels(reason=refusal.code.name.lower()).inc()
        host = peer.rpartition(":")[0]
        if not self._seen:
            asyncio.get_running_loop().call_later(_PERIOD_SECONDS, self._end_period)
        self._seen[host] += 1
        if self._seen[host] <= _MOST:
            about = f" {refusal.about}" if refusal.about else ""
            said = one_line(refusal.message, _MOST_LINE)
            _log.warning("audit: refused %s from %s%s: %s", method, one_line(peer, _MOST_LINE), about, said)

    def _end_period(self) -> None:
        for peer, count in self._seen.items():
            if count > _MOST:
                _log.warning("audit: %d more refusals of %s are not listed", count - _MOST, peer)
        self._seen.clear()
