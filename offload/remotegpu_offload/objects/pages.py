"""Large buffers as pages named by their content, of which only those travel that the other end lacks.

A page's name is a hash of its content, so a changed array is another page; what a name means is decided by the end that
sends it, and only its own later messages are read with it. Both ends forget the page that was used longest ago by the
same rule. Where they still disagree (two threads' messages overtook each other), the receiver asks.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

Buffer = bytes | bytearray | memoryview

FLOOR: Final = 64 << 10
"""In bytes; a smaller buffer travels inside the pickle."""
SEGMENT: Final = 4 << 20
"""The largest page, in bytes; a larger buffer is cut."""
CARRIED: Final = 256 << 20
"""The most that one message carries in pages, in bytes; the receiver asks for the rest piece by piece."""
LARGEST: Final = (2 << 30) - (64 << 20)
"""The most that a value has without pages, in bytes; the wire's frames are hardly larger."""
REMEMBERED: Final = 1 << 30
"""Default limit of the bytes of pages that the receiver remembers."""


def name_of(data: Buffer) -> str:
    """128 bits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:32]


def segments(buffer: Buffer) -> list[memoryview]:
    """The buffer as flat pieces of at most SEGMENT bytes."""
    flat = memoryview(buffer).cast("B")
    return [flat[start : start + SEGMENT] for start in range(0, len(flat), SEGMENT)]


class Ledger:
    """Which pages the other end has, as far as this end can know."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._held = 0
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, name: str, size: int) -> bool:
        """Whether the other end has this page; from now on it has."""
        with self._lock:
            if name in self._sizes:
                self._sizes.move_to_end(name)
                return True
            self._sizes[name] = size
            self._held += size
            while self._held > self._limit:
                _, freed = self._sizes.popitem(last=False)
                self._held -= freed
            return False

    def clear(self) -> None:
        """The other end is another one."""
        with self._lock:
            self._sizes.clear()
            self._held = 0


class Cache:
    """The pages that the other end has sent, at most `limit` bytes of them."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._held = 0
        self._pages: OrderedDict[str, Buffer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> Buffer | None:
        with self._lock:
            page = self._pages.get(name)
            if page is not None:
                self._pages.move_to_end(name)
            return page

    def put(self, name: str, page: Buffer) -> None:
        with self._lock:
            if name in self._pages:
                return
            # A view would keep the whole message that it came in.
            self._pages[name] = bytes(page)
            self._held += len(page)
            while self._held > self._limit:
                _, gone = self._pages.popitem(last=False)
                self._held -= len(gone)

    @property
    def bytes(self) -> int:
        return self._held

    def __len__(self) -> int:
        return len(self._pages)


class Outgoing:
    """Pages of messages that are under way, for the receiver that lacks one after all."""

    def __init__(self) -> None:
        self._messages: dict[int, dict[str, memoryview]] = {}
        self._next = 1
        self._lock = threading.Lock()

    def hold(self, pages: dict[str, memoryview]) -> int:
        """Keep these until `release`; the number names them."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._messages[number] = pages
            return number

    def release(self, number: int) -> None:
        with self._lock:
            self._messages.pop(number, None)

    def pages(self, number: int, names: Sequence[str]) -> list[bytes]:
        """Returns pages of a message. Raises LookupError for a page that is not under way, and ValueError for one that
        was changed in the meantime."""
        with self._lock:
            message = self._messages.get(number, {})
        found = []
        for name in names:
            if name not in message:
                raise LookupError(f"page {name} belongs to no message under way")
            data = bytes(message[name])
            if name_of(data) != name:
                raise ValueError(
                    "an argument was changed by another thread while it was sent: "
                    "lock it for the time of the call, or pass a copy"
                )
            found.append(data)
        return found

    def __len__(self) -> int:
        return len(self._messages)
