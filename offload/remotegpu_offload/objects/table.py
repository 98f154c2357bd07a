"""Distributed reference counting: objects exported to the peer, and handles to the peer's objects.

A handle may die at one end while the other end sends the same object again. So both count: each time that an object is
sent, its count grows by one. When a handle dies, it gives back as many as it has received. At zero the object is
released.
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

_LEAPS: Final = 30  # bits: so many beginnings there are for an acceptor that takes the place of another one


class _Entry:
    __slots__ = ("count", "kind", "value")

    def __init__(self, value: Any, kind: str) -> None:
        self.value = value
        self.kind = kind
        self.count = 0


class Table:
    """This end's objects that the other end holds."""

    def __init__(self, first: int, holder: str) -> None:
        self._ids = itertools.count(first)
        self._holder = holder
        self._entries: dict[int, _Entry] = {}
        self._by_identity: dict[int, int] = {}
        self._lock = threading.Lock()

    def mint(self) -> int:
        return next(self._ids)

    def export(self, value: Any, kind: str) -> int:
        """Returns the id of an object that is being sent, and adds one to its count."""
        with self._lock:
            ident = self._by_identity.get(id(value))
            if ident is None:
                ident = next(self._ids)
                self._put(ident, value, kind)
            self._entries[ident].count += 1
            return ident

    def place(self, ident: int, value: Any, kind: str) -> None:
        """Puts an object under an id that the other end has minted and holds already.

        An object that has an id keeps it: then both are its ids. Raises ValueError for an id that is in use.
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
        """Returns the id and kind of an object that the other end holds, and adds one to its count, for it is being
        sent."""
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
        """Whether the other end holds this object."""
        return id(value) in self._by_identity

    def get(self, ident: Any) -> Any:
        return self.entry(ident)[0]

    def entry(self, ident: Any) -> tuple[Any, str]:
        """Returns the object and its kind.

        Raises UnknownObjectError.
        """
        entry = self._entries.get(ident) if isinstance(ident, int) else None
        if entry is None:
            raise UnknownObjectError(
                f"{self._holder} holds no object {ident!r} of this session: handles are good only in the session, "
                "and with the acceptor, that they came from"
            )
        return entry.value, entry.kind

    def release(self, gone: Iterable[tuple[int, int]]) -> None:
        """Gives back counts: (id, count) of handles that died. An id that is not there was never valid: ignored."""
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
        # Their finalizers run here, outside of the lock.
        dropped.clear()

    def items(self) -> list[tuple[int, str, int, Any]]:
        """Returns (id, kind, count, object) of all."""
        with self._lock:
            return [(ident, entry.kind, entry.count, entry.value) for ident, entry in self._entries.items()]

    def restore(self, items: Iterable[tuple[int, str, int, Any]]) -> None:
        """Takes over the objects of another acceptor's table."""
        with self._lock:
            for ident, kind, count, value in items:
                self._put(ident, value, kind)
                self._entries[ident].count = count
            # The other acceptor may have given out more ids, to which the client still has handles: begin far from
            # them.
            self._ids = itertools.count(ACCEPTORS + (1 + secrets.randbits(_LEAPS) << 63 - 1 - _LEAPS))

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._by_identity.clear()

    def __len__(self) -> int:
        return len(self._entries)


class Handle:
    """This end's claim to one object of the other end. The proxy keeps it."""

    __slots__ = ("_gone", "count", "ident", "kind")

    def __init__(self, ident: int, kind: str, gone: "deque[tuple[int, int]]", count: int = 1) -> None:
        self.ident = ident
        self.kind = kind
        self.count = count
        self._gone = gone

    def __del__(self) -> None:
        # It runs on any thread, at any moment, perhaps in the middle of a message: so it only notes the count.
        if self.count:
            self._gone.append((self.ident, self.count))


class Residents:
    """Objects of this program that were sent to stay at the acceptor: known there as long as they live here."""

    def __init__(self, mint: Callable[[], int], gone: "deque[tuple[int, int]]") -> None:
        self._mint = mint
        self._gone = gone
        self._by_identity: dict[int, tuple[weakref.ref[Any], Handle]] = {}

    def ident(self, value: Any) -> tuple[int, bool]:
        """Returns the id of an object, and whether the acceptor has it already; from now on it has.

        Raises TypeError for a value without weak references: then nothing tells when it can be released.
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
        """Lists all of them but these."""
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
    """This end's proxies for objects of the other end: one for each object."""

    def __init__(self) -> None:
        self._stands: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # Claims that died: (id, count).
        self.dead: deque[tuple[int, int]] = deque()
        self._lock = threading.RLock()

    def handle(self, ident: int, kind: str) -> Handle:
        """Makes a handle to an object whose id this end has minted; `stands` registers its proxy."""
        return Handle(ident, kind, self.dead)

    def stands(self, ident: int, value: Any) -> None:
        self._stands[ident] = value

    def receive(self, handle: Handle, make: Callable[[Handle], Any], handle_of: Callable[[Any], Handle]) -> Any:
        """Returns the proxy for an object that was sent: the existing one, or else a new one."""
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
        """Returns the handles that died since the last time, for the next message."""
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
