"""Pages: large buffers that are named by their content. Only pages that the other end lacks are sent.

A page's name is a hash of its content, so a changed array is a new page. The end that sends a page defines its name,
and the name is used only for later messages of that end. Both ends evict the least recently used page by the same rule.
Where their records still differ, because messages of two threads arrived in another order, the receiver asks.
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
    """Returns the name of a page: 128 bits of SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()[:32]


def segments(buffer: Buffer) -> list[memoryview]:
    """Returns the buffer as flat pieces of at most SEGMENT bytes."""
    flat = memoryview(buffer).cast("B")
    return [flat[start : start + SEGMENT] for start in range(0, len(flat), SEGMENT)]


class Ledger:
    """A record of the pages that the other end should have in its cache."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._held = 0
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, name: str, size: int) -> bool:
        """Returns whether the other end has this page. Records the page as sent."""
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
        """Forgets all pages, because the other end was replaced."""
        with self._lock:
            self._sizes.clear()
            self._held = 0


class Cache:
    """The pages that the other end has sent; holds at most `limit` bytes."""

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
            # Copied: a view would keep the whole message alive.
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
    """The pages of messages without an answer yet, in case the receiver asks for one."""

    def __init__(self) -> None:
        self._messages: dict[int, dict[str, memoryview]] = {}
        self._next = 1
        self._lock = threading.Lock()

    def hold(self, pages: dict[str, memoryview]) -> int:
        """Keeps pages until `release`. Returns the number that identifies them."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._messages[number] = pages
            return number

    def release(self, number: int) -> None:
        with self._lock:
            self._messages.pop(number, None)

    def pages(self, number: int, names: Sequence[str]) -> list[bytes]:
        """Returns pages of a message.

        Raises LookupError for a page of no current message, and ValueError for one whose content was changed.
        """
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
