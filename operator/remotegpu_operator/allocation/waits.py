"""Tracks how long each request has waited, and so whether the request reserves GPUs."""

import datetime
import heapq
import math

from remotegpu.api import reservations
from remotegpu_operator.allocation.decisions import Request


class Waits:
    """The waiting times of requests. All times are in seconds since 1970, and never go back."""

    def __init__(self) -> None:
        self._now = 0.0
        self._since: dict[str, float] = {}
        # A heap of (time of the next change of stage, uid). Some entries belong to requests that no longer wait.
        self._due: list[tuple[float, str]] = []

    def copy(self) -> "Waits":
        made = Waits()
        made._now, made._since, made._due = self._now, dict(self._since), list(self._due)
        return made

    @property
    def next_change(self) -> float:
        """The time at which a request enters its next stage; infinity if there is none."""
        while self._due and not self._is_due(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else math.inf

    def set_time(self, now: float) -> list[str]:
        """Sets the time, and returns the uids of the requests that have entered another stage."""
        self._now = max(self._now, now)
        changed = []
        while self.next_change <= self._now:
            _, uid = heapq.heappop(self._due)
            self._expect_change(uid)
            changed.append(uid)
        return changed

    def begin(self, request: Request) -> None:
        """Starts a request's wait, unless it has begun already.

        The wait counts from the claim's creation, or from now if the claim had GPUs before.
        """
        if request.uid not in self._since:
            self._since[request.uid] = self._now if request.again else self._created(request)
            self._expect_change(request.uid)

    def end(self, uid: str) -> None:
        self._since.pop(uid, None)

    def stage(self, uid: str) -> float:
        """Returns the stage of a request's wait: see `reservations.stage`."""
        return reservations.stage(self._since[uid], self._now)

    def _is_due(self, when: float, uid: str) -> bool:
        since = self._since.get(uid)
        return since is not None and reservations.next_change(since, math.nextafter(when, -math.inf)) == when

    def _created(self, request: Request) -> float:
        try:
            return datetime.datetime.fromisoformat(request.created).timestamp()
        except ValueError:
            return self._now

    def _expect_change(self, uid: str) -> None:
        if (change := reservations.next_change(self._since[uid], self._now)) is not None:
            heapq.heappush(self._due, (change, uid))
