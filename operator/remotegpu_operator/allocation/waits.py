"""How long each request has waited, and what follows from that for what it reserves."""

import datetime
import math

from remotegpu.api import reservations
from remotegpu_operator.allocation.decisions import Request


class Waits:
    """Times are seconds since 1970. `next_change`: when one of the answers changes next."""

    def __init__(self) -> None:
        self._now = 0.0
        self._since: dict[str, float] = {}
        self.next_change = math.inf

    def copy(self) -> "Waits":
        made = Waits()
        made._now, made._since, made.next_change = self._now, dict(self._since), self.next_change
        return made

    def set_time(self, now: float) -> bool:
        """What time it is; returns whether an answer may have changed."""
        self._now = now
        if now < self.next_change:
            return False
        self.next_change = math.inf
        for since in self._since.values():
            self._expect_change(since)
        return True

    def begin(self, request: Request) -> None:
        """A request waits from its creation or, for what it had before, from now; one that is known, as before."""
        since = self._since.setdefault(request.uid, self._now if request.again else self._created(request))
        self._expect_change(since)

    def end(self, uid: str) -> None:
        self._since.pop(uid, None)

    def heeds(self, request: Request) -> bool:
        """Whether it leaves alone what others reserve."""
        return reservations.heeds(self._waited(request))

    def reserves(self, request: Request, *, holds: bool) -> bool:
        """Whether it keeps other namespaces from what it waits for; `holds`: its own has a part of that."""
        return reservations.reserves(self._waited(request), holds=holds)

    def reserves_within_namespace(self, request: Request) -> bool:
        """Whether it keeps others of its namespace from what it waits for."""
        return reservations.reserves_within_tenant(self._waited(request))

    def _waited(self, request: Request) -> float:
        # Clocks differ.
        return max(0.0, self._now - self._since[request.uid])

    def _created(self, request: Request) -> float:
        try:
            return datetime.datetime.fromisoformat(request.created).timestamp()
        except ValueError:
            return self._now

    def _expect_change(self, since: float) -> None:
        if (change := reservations.next_change(since, self._now)) is not None:
            self.next_change = min(self.next_change, change)
