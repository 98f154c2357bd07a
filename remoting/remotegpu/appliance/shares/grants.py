"""Grants each session of a lease memory of a GPU. The sum never exceeds the share. No I/O."""

from dataclasses import dataclass, field

# While a quarter of the share stays free, a session gets all that it wants; below that, only the least that it needs.
# Otherwise a process with a large reserve would let another process of the lease fail although memory is unused.
_PLENTY = 4


@dataclass(slots=True)
class Quota:
    """A lease's share of one GPU, and the bytes granted to each session."""

    limit: int
    granted: dict[str, int] = field(default_factory=dict)
    # The part of each grant that the session is overwriting before it returns it.
    leaving: dict[str, int] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return sum(self.granted.values())

    @property
    def free(self) -> int:
        return self.limit - self.used

    def grant(self, session: str, least: int, want: int) -> int:
        """Grants `want` bytes while enough is free, `least` bytes near the limit, else 0. Returns the bytes."""
        free = self.free
        if not 0 < least <= free:
            return 0
        size = want if want > least and free - want >= self.limit // _PLENTY else least
        self.granted[session] = self.granted.get(session, 0) + size
        return size

    def leave(self, session: str, size: int) -> None:
        """Notes that a session will return `size` bytes soon, limited to the bytes that it has."""
        most = self.granted.get(session, 0) - self.leaving.get(session, 0)
        self.leaving[session] = self.leaving.get(session, 0) + max(0, min(size, most))

    def give_back(self, session: str, size: int) -> None:
        """Takes back `size` bytes of a session's grant, limited to the bytes that it has."""
        held, leaving = self.granted.get(session, 0), self.leaving.get(session, 0)
        back = max(0, min(size, held))
        self.granted[session] = held - back
        self.leaving[session] = leaving - min(back, leaving)

    def move(self, session: str, to: str, size: int, *, leaves: bool) -> bool:
        """Moves `size` bytes of a session's grant to `to`; with `leaves` from the `leaving` part. False if too few."""
        held, leaving = self.granted.get(session, 0), self.leaving.get(session, 0)
        if not 0 < size <= (leaving if leaves else held - leaving):
            return False
        self.granted[session] = held - size
        self.leaving[session] = leaving - (size if leaves else 0)
        self.granted[to] = self.granted.get(to, 0) + size
        return True

    def forget(self, session: str) -> None:
        """Removes a session whose process has ended, so that the driver has freed all its memory."""
        self.granted.pop(session, None)
        self.leaving.pop(session, None)
