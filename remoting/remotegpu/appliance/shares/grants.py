"""Decides how much memory of a GPU each session of a lease may map. Pure state; the sum never exceeds the share."""

from dataclasses import dataclass, field

# While this part of the share stays free a session gets what it wants, beyond it only what it needs: otherwise a
# process that hoards would let another one of the lease fail although memory is unused.
_PLENTY = 4


@dataclass(slots=True)
class Quota:
    """The share of one GPU, and the grants of each session."""

    limit: int
    granted: dict[str, int] = field(default_factory=dict)
    # The part of the grants that is being overwritten before it comes back.
    leaving: dict[str, int] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return sum(self.granted.values())

    @property
    def free(self) -> int:
        return self.limit - self.used

    def grant(self, session: str, least: int, want: int) -> int:
        """Grants `want` bytes while plenty is free, `least` near the limit, 0 past it."""
        free = self.free
        if not 0 < least <= free:
            return 0
        size = want if want > least and free - want >= self.limit // _PLENTY else least
        self.granted[session] = self.granted.get(session, 0) + size
        return size

    def leave(self, session: str, size: int) -> None:
        """Notes that a session gives so much back soon; a claim of more than it has is ignored."""
        most = self.granted.get(session, 0) - self.leaving.get(session, 0)
        self.leaving[session] = self.leaving.get(session, 0) + max(0, min(size, most))

    def give_back(self, session: str, size: int) -> None:
        """Takes back part of a session's grants, at most all of them."""
        held, leaving = self.granted.get(session, 0), self.leaving.get(session, 0)
        back = max(0, min(size, held))
        self.granted[session] = held - back
        self.leaving[session] = leaving - min(back, leaving)

    def move(self, session: str, to: str, size: int, *, leaves: bool) -> bool:
        """Moves part of a session's grants to another; false if it has less. `leaves`: part of what it gives back."""
        held, leaving = self.granted.get(session, 0), self.leaving.get(session, 0)
        if not 0 < size <= (leaving if leaves else held - leaving):
            return False
        self.granted[session] = held - size
        self.leaving[session] = leaving - (size if leaves else 0)
        self.granted[to] = self.granted.get(to, 0) + size
        return True

    def forget(self, session: str) -> None:
        """Removes a session whose process has ended; the driver has freed all its memory."""
        self.granted.pop(session, None)
        self.leaving.pop(session, None)
