"""Distributed reference counting: objects exported to the peer, and handles to the peer's objects.

A handle may be deleted at one end while the other end sends the same object again. Therefore both ends count: each time
an object is sent, its count grows by one. A deleted handle returns as many counts as it has received. At zero the
object is released.
"""

import itertools
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from remotegpu_offload.objects.errors import UnknownObjectError

ACCEPTORS: Final = 1 << 63
"""Ids from here on were minted by the acceptor; the client's begin at 1. Neither are used twice in a session."""

_LEAPS: Final = 30  # bits of the random start for an acceptor that replaces another one


class _Entry:
    __slots__ = ("count", "kind", "value")

    def __init__(self, value: Any, kind: str) -> None:
        self.value = value
        self.kind = kind
        self.count = 0


class Table:
    """The objects of this end that the other end has handles to."""

    def __init__(self, first: int, holder: str) -> None:
        self._ids = itertools.count(first)
        self._holder = holder
        self._entries: dict[int, _Entry] = {}
        self._by_identity: dict[int, int] = {}
        self._lock = threading.Lock()

    def mint(self) -> int:
        return next(self._ids)

    def export(self, value: Any, kind: str) -> int:
        """Returns the id of an object that is being sent, and increments its count."""
        with self._lock:
            ident = self._by_identity.get(id(value))
            if ident is None:
                ident = next(self._ids)
                self._put(ident, value, kind)
            self._entries[ident].count += 1
            return ident

    def place(self, ident: int, value: Any, kind: str) -> None:
        """Stores an object under an id that the other end has created and has a handle to.

        An object with an id keeps that id as well. Raises ValueError if the id is in use.
        """
        with self._lock:
            if ident in self._entries:
                raise ValueError(f"object {ident} exists already")
            self._put(ident, value, kind)
            self._entries[ident].count = 1

    def _put(self, ident: int, value: Any, kind: str) -> None:
        self._entries[ident] = _Entry(value, kind)
        self._by_identity.setdefault(id(value), ident)

    def find(self, value: Any) -> tuple[int, str] | None:
        """Increments the count of an object that is being sent.

        Returns its id and kind; None if it was never exported.
        """
        if id(value) not in self._by_identity:
            return None
        with self._lock:
            ident = self._by_identity.get(id(value))
            if ident is None:
                return None
            entry = self._entries[ident]
            entry.count += 1
            return ident, entry.kind

    def has(self, value: Any) -> bool:
        """Returns whether the other end has a handle to this object."""
        return id(value) in self._by_identity

    def get(self, ident: Any) -> Any:
        return self.entry(ident)[0]

    def entry(self, ident: Any) -> tuple[Any, str]:
        """Returns the object and its kind. Raises UnknownObjectError."""
        entry = self._entries.get(ident) if isinstance(ident, int) else None
        if entry is None:
            raise UnknownObjectError(
                f"{self._holder} holds no object {ident!r} of this session: handles are good only in the session, "
                "and with the acceptor, that they came from"
            )
        return entry.value, entry.kind

    def release(self, gone: Iterable[tuple[int, int]]) -> None:
        """Subtracts the counts of deleted handles, given as (id, count).

        Ignores unknown ids, which were never valid.
        """
        dropped = []
        with self._lock:
            for ident, count in gone:
                entry = self._entries.get(ident)
                if entry is None:
                    continue
                entry.count -= count
                if entry.count <= 0:
                    del self._entries[ident]
                    if self._by_identity.get(id(entry.value)) == ident:
                        del self._by_identity[id(entry.value)]
                    dropped.append(entry)
        # The objects' finalizers run here, outside of the lock.
        dropped.clear()

    def items(self) -> list[tuple[int, str, int, Any]]:
        """Returns (id, kind, count, object) of all objects."""
        with self._lock:
            return [(ident, entry.kind, entry.count, entry.value) for ident, entry in self._entries.items()]

    def restore(self, items: Iterable[tuple[int, str, int, Any]]) -> None:
        """Adds the objects of another acceptor's table."""
        with self._lock:
            for ident, kind, count, value in items:
                self._put(ident, value, kind)
                self._entries[ident].count = count
            # The other acceptor may have used more ids, to which the client still has handles. Begin far from them.
            self._ids = itertools.count(ACCEPTORS + (1 + secrets.randbits(_LEAPS) << 63 - 1 - _LEAPS))

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._by_identity.clear()

    def __len__(self) -> int:
        return len(self._entries)


class Handle:
    """A reference to one object of the other end, with a count. The proxy owns it."""

    __slots__ = ("_gone", "count", "ident", "kind")

    def __init__(self, ident: int, kind: str, gone: "deque[tuple[int, int]]", count: int = 1) -> None:
        self.ident = ident
        self.kind = kind
        self.count = count
        self._gone = gone

    def __del__(self) -> None:
        # Runs on any thread at any time, perhaps while a message is written, so it only records the count.
        if self.count:
            self._gone.append((self.ident, self.count))


class Residents:
    """Objects of this program that were sent to stay in the acceptor.

    The acceptor keeps each as long as it exists here.
    """

    def __init__(self, mint: Callable[[], int], gone: "deque[tuple[int, int]]") -> None:
        self._mint = mint
        self._gone = gone
        self._by_identity: dict[int, tuple[weakref.ref[Any], Handle]] = {}

    def ident(self, value: Any) -> tuple[int, bool]:
        """Returns the id of an object, and whether the acceptor has it already. Records it as sent.

        Raises TypeError for a value without weak references: its end could not be noticed.
        """
        found = self._by_identity.get(id(value))
        if found is not None and found[0]() is value:
            return found[1].ident, True
        key = id(value)
        reference = weakref.ref(value, lambda _: self._by_identity.pop(key, None))
        handle = Handle(self._mint(), "object", self._gone)
        self._by_identity[key] = (reference, handle)
        return handle.ident, False

    def others(self, idents: Iterable[int]) -> list[Any]:
        """Returns all objects except those with these ids."""
        but = set(idents)
        found = [reference() for reference, handle in list(self._by_identity.values()) if handle.ident not in but]
        return [value for value in found if value is not None]

    def forget(self, idents: Iterable[int]) -> None:
        """Drops ids of objects that were not sent after all."""
        lost = set(idents)
        for key, (_, handle) in list(self._by_identity.items()):
            if handle.ident in lost:
                handle.count = 0
                del self._by_identity[key]

    def clear(self) -> None:
        self._by_identity.clear()

    def __len__(self) -> int:
        return len(self._by_identity)


class Held:
    """The proxies for objects of the other end, one for each object."""

    def __init__(self) -> None:
        self._stands: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # The (id, count) of deleted handles.
        self.dead: deque[tuple[int, int]] = deque()
        self._lock = threading.RLock()

    def handle(self, ident: int, kind: str) -> Handle:
        """Makes a handle to an object whose id this end has created. Call `stands` to register its proxy."""
        return Handle(ident, kind, self.dead)

    def stands(self, ident: int, value: Any) -> None:
        self._stands[ident] = value

    def receive(self, handle: Handle, make: Callable[[Handle], Any], handle_of: Callable[[Any], Handle]) -> Any:
        """Returns the proxy for a received object: the existing one, or a new one."""
        with self._lock:
            value = self._stands.get(handle.ident)
            if value is not None:
                handle_of(value).count += handle.count
                handle.count = 0
                return value
            value = make(handle)
            self._stands[handle.ident] = value
            return value

    def gone(self) -> list[tuple[int, int]]:
        """Returns the (id, count) of handles that were deleted since the last call, for the next message."""
        if not self.dead:
            return []
        found = []
        while self.dead:
            found.append(self.dead.popleft())
        return found

    def clear(self) -> None:
        self._stands.clear()
        self.dead.clear()

    def __len__(self) -> int:
        return len(self._stands)
