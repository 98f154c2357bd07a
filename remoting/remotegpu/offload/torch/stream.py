"""The client's end of the stream of operations: what it appends travels in batches and in order, and nobody waits
for it.

A batch leaves when something needs an answer, at 64 entries, at 256 KiB, or when 200 us have passed; the first entry
of a stream that was idle leaves at once, so that the acceptor begins while the client goes on. Batches carry numbers,
because several threads of the program may send: the acceptor executes them in the order of the numbers.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from remotegpu.offload.torch.codec import BATCH
from remotegpu.offload.wire.errors import OffloadError
from remotegpu.offload.wire.frames import Buffer, Message, Service
from remotegpu.offload.wire.peer import Peer

ENTRIES: Final = 64
BYTES: Final = 256 << 10
IDLE_S: Final = 200e-6


class Stream:
    """`peer` is asked for anew for each message, because a session may move to another acceptor.

    Appending to `entries` is all that an operation does; a list's append is atomic, also for the garbage collector,
    which frees.
    """

    def __init__(self, peer: Callable[[], Peer]) -> None:
        self.entries: list[bytes] = []
        self.append = self.entries.append
        # Whether the next entry should leave at once.
        self.idle = True
        self.operations = 0
        self.batches = 0
        self.bytes = 0
        self._peer = peer
        self._buffers: list[Buffer] = []
        self._buffered = 0
        # Entered again where a destructor runs operations in the middle of sending.
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._closed = False
        self._sender: threading.Thread | None = None

    def flush(self) -> None:
        """Send what there is. Raises LostError when the acceptor is gone."""
        self.idle = False
        with self._lock:
            buffers = self._take()
            if buffers is not None:
                self._peer().notify(Service.TORCH, {"op": "run"}, buffers)
        if not self._wake.is_set():
            self._awake()

    def ask(self, then: str, header: dict[str, Any] | None = None, buffers: Sequence[Buffer] = ()) -> Message:
        """Send what there is and, when all of it has been executed, have `then` done: one round trip.

        The reply may tell of an operation's error: `errors.checked` raises it. Raises LostError when the acceptor is
        gone.
        """
        self.idle = False
        with self._lock:
            mine = self._take(always=True)
        assert mine is not None
        return self._peer().request(
            Service.TORCH, {"op": "run", "then": then, "own": len(buffers), **(header or {})}, [*mine, *buffers]
        )

    def tell(self, then: str, header: dict[str, Any] | None = None, buffers: Sequence[Buffer] = ()) -> None:
        """As `ask`, but nobody waits: an error is told at the next answer. Raises LostError when the acceptor is
        gone.
        """
        self.idle = False
        with self._lock:
            mine = self._take(always=True)
            assert mine is not None
            self._peer().notify(
                Service.TORCH, {"op": "run", "then": then, "own": len(buffers), **(header or {})}, [*mine, *buffers]
            )

    def put(self, entry: bytes, data: Buffer, *, snapshot: bool) -> None:
        """An entry with bytes. They are read before this returns; `snapshot` tells that they may change while they
        wait.
        """
        size = len(data) if isinstance(data, (bytes, bytearray)) else data.nbytes
        with self._lock:
            small = size < BYTES
            self._buffers.append(bytes(data) if snapshot and small else data)
            self._buffered += size
            self.append(entry)
            if not small or self._buffered >= BYTES or len(self.entries) >= ENTRIES:
                self.flush()

    def close(self) -> None:
        """End the thread that sends what waited for more."""
        self._closed = True
        self._wake.set()

    def abandon(self) -> None:
        """In a forked child: nothing may be sent, and locks may be held by threads that are not here."""
        self._lock = threading.RLock()
        self._sender = None
        self._wake = threading.Event()
        self.entries.clear()
        self._buffers.clear()

    def restart(self) -> None:
        """Begin anew with another acceptor: its numbers start at nought."""
        with self._lock:
            self.batches = 0

    def _take(self, *, always: bool = False) -> list[Buffer] | None:
        """The batch so far as buffers, or None when there is none."""
        count = len(self.entries)
        if not count and not always:
            return None
        # Others only append, so what lies before stays in place.
        taken = self.entries[:count]
        del self.entries[:count]
        buffers, self._buffers, self._buffered = self._buffers, [], 0
        body = BATCH.pack(self.batches) + b"".join(taken)
        self.batches += 1
        self.operations += count
        self.bytes += len(body)
        return [body, *buffers]

    def _awake(self) -> None:
        """Have the sender look after what is appended from now on."""
        if self._sender is None:
            self._sender = threading.Thread(target=self._look, name="remotegpu torch sender", daemon=True)
            self._sender.start()
        self._wake.set()

    def _look(self) -> None:
        while not self._closed:
            self._wake.wait()
            time.sleep(IDLE_S)
            if self.entries:
                # A lost acceptor is told to whoever needs an answer.
                with contextlib.suppress(OffloadError):
                    self.flush()
                continue
            self._wake.clear()
            self.idle = True
            # Appended after we looked, by somebody who did not yet see that the stream is idle.
            if self.entries:
                self._wake.set()
