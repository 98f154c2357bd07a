"""The client's end of the stream of operations: sends appended entries in batches and in order, without waiting.

A batch is sent when a request needs an answer, at 64 entries, at 256 KiB, or after 200 us. The first entry after an
idle time is sent at once, so that the acceptor works while the client continues. Batches carry numbers, because several
threads of the program may send: the acceptor executes the batches in the order of the numbers.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from remotegpu_offload.torch.codec import BATCH
from remotegpu_offload.torch.stream.history import last_operation
from remotegpu_offload.torch.stream.interrupt import watch
from remotegpu_offload.torch.stream.journal import Journal
from remotegpu_offload.wire.errors import LostError, OffloadError
from remotegpu_offload.wire.frames import Buffer, Message, Service
from remotegpu_offload.wire.interrupts import Held
from remotegpu_offload.wire.peer import Peer

ENTRIES: Final = 64
BYTES: Final = 256 << 10
IDLE_S: Final = 200e-6
# How many batches are searched for the last operation: some contain none, because they only free storages.
_REMEMBERED: Final = 64

FORKED: Final = (
    "this process was forked from one that has a remote device, and has none itself, as with CUDA. Keep its tensors "
    "on the CPU, or start it with multiprocessing's method 'spawn'"
)


class _Carrying(bytes):
    """An entry together with the data that follows its batch.

    It is one object, because the garbage collector may run other operations between any two steps (Python 3.12).
    """

    data: Buffer


class Stream:
    """The stream of operations. `peer` is called for each message, because a session may move to another acceptor.

    An operation only appends to `entries`. Appending to a list is atomic, also for the garbage collector, which appends
    entries that free storages.
    """

    def __init__(self, peer: Callable[[], Peer]) -> None:
        self.entries: list[bytes] = []
        self.append = self.entries.append
        # Whether the next entry should be sent at once.
        self.idle = True
        self.operations = 0
        self.batches = 0
        self.bytes = 0
        # The last batches with entries, and the templates that describe these entries.
        self._last: deque[bytes] = deque(maxlen=_REMEMBERED)
        self.known: Callable[[], Sequence[bytes]] = tuple
        # The sent batches, if another acceptor can replace a lost one; otherwise None.
        self.journal: Journal | None = None
        self._peer = peer
        self._buffered = 0
        # Reentrant, because a destructor may run operations while a batch is sent.
        self._lock = threading.RLock()
        # The number of threads that wait for an answer.
        self._asking = 0
        self._asked = threading.Condition()
        self._wake = threading.Event()
        self._closed = False
        self._sender: threading.Thread | None = None

    def flush(self) -> None:
        """Sends all entries. Raises LostError if the acceptor is lost."""
        self._say({"op": "run"})
        if not self._wake.is_set():
            self._awake()

    def ask(
        self, then: str, header: dict[str, Any] | None = None, buffers: Sequence[Buffer] = (), *, alone: bool = False
    ) -> Message:
        """Sends all entries with the request `then`, which the acceptor executes after them. Waits: one round trip.

        `alone` leaves the entries for later: the request follows only earlier batches. The reply may carry an
        operation's error; `errors.checked` raises it. Raises LostError if the acceptor is lost.
        """
        self.idle = False
        peer = self._reach()
        whole = {"op": "run", "then": then, "own": len(buffers), **(header or {})}
        with Held():
            with self._lock:
                mine = self._number(b"") if alone else self._take(always=True)
                assert mine is not None
                mine.extend(buffers)
                self._note(whole, mine)
                with self._asked:
                    self._asking += 1
            try:
                while True:
                    try:
                        return peer.request(Service.TORCH, whole, mine)
                    except LostError as error:
                        if self.journal is None:
                            raise self._named(error) from None
                    # If another acceptor has executed the batch already, it only answers the request.
                    peer = self._reach()
            finally:
                with self._asked:
                    self._asking -= 1
                    self._asked.notify_all()

    def tell(self, then: str, header: dict[str, Any] | None = None, buffers: Sequence[Buffer] = ()) -> None:
        """Sends like `ask`, but does not wait: the next answer reports an error.

        Raises LostError if the acceptor is lost.
        """
        self._say({"op": "run", "then": then, "own": len(buffers), **(header or {})}, buffers, always=True)

    def put(self, entry: bytes, data: Buffer, *, snapshot: bool) -> None:
        """Appends an entry with data.

        `snapshot`: the data may change after this returns, so small data is copied, and large data is sent at once.
        """
        size = len(data) if isinstance(data, (bytes, bytearray)) else data.nbytes
        small = size < BYTES
        carrying = _Carrying(entry)
        carrying.data = bytes(data) if snapshot and small else data
        with Held(), self._lock:
            self._buffered += size
            self.append(carrying)
            full = not small or self._buffered >= BYTES or len(self.entries) >= ENTRIES
        if full:
            self.flush()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Lets only the calling thread send inside it. Waits until no other thread waits for an answer."""
        with self._lock:
            with self._asked:
                self._asked.wait_for(lambda: not self._asking)
            yield

    def close(self) -> None:
        """Ends the thread that sends entries after 200 us."""
        self._closed = True
        self._wake.set()

    def abandon(self) -> None:
        """Disables the stream in a forked child: sending raises OffloadError.

        Replaces locks that the parent's threads may hold.
        """
        self._peer = _nobody
        self._lock = threading.RLock()
        self._asking, self._asked = 0, threading.Condition()
        self._sender = None
        self._wake = threading.Event()
        # Every operation must fail at once, and not only those that need an answer, because there is no device.
        self.idle = True
        self.entries.clear()

    def _reach(self) -> Peer:
        watch()
        try:
            return self._peer()
        except LostError as error:
            raise self._named(error) from None

    def _named(self, error: LostError) -> LostError:
        """Returns the error with the name of the operation that was sent last."""
        known = self.known()
        names = (last_operation(batch, known) for batch in reversed(list(self._last)))
        name = next(filter(None, names), "")
        return error.during(f"the last operation sent was {name}") if name else error

    def _note(self, header: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        if self.journal is not None:
            self.journal.add(self.batches - 1, header, buffers)

    def _say(self, header: dict[str, Any], own: Sequence[Buffer] = (), *, always: bool = False) -> None:
        peer = self._reach()
        self.idle = False
        with Held():
            with self._lock:
                buffers = self._take(always=always)
                if buffers is None:
                    return
                buffers.extend(own)
                self._note(header, buffers)
                try:
                    peer.notify(Service.TORCH, header, buffers)
                except LostError as error:
                    if self.journal is None:
                        raise self._named(error) from None
                else:
                    return
            self._tell_another(header, buffers)

    def _tell_another(self, header: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        """Sends the message to the acceptor that replaces a lost one.

        The journal may have sent it already, which does no harm.
        """
        while True:
            peer = self._reach()
            with contextlib.suppress(LostError):
                peer.notify(Service.TORCH, header, buffers)
                return

    def _take(self, *, always: bool = False) -> list[Buffer] | None:
        """Returns the entries as the buffers of a batch; None if there are none."""
        count = len(self.entries)
        if not count and not always:
            return None
        # Other threads only append, so the first entries keep their places.
        taken = self.entries[:count]
        del self.entries[:count]
        self._buffered = 0
        self.operations += count
        data = [entry.data for entry in taken if entry.__class__ is _Carrying]
        return [*self._number(b"".join(taken)), *data]

    def _number(self, entries: bytes) -> list[Buffer]:
        """Makes a batch of these entries. The caller holds the lock."""
        body = BATCH.pack(self.batches) + entries
        if entries:
            self._last.append(body)
        self.batches += 1
        self.bytes += len(body)
        return [body]

    def _awake(self) -> None:
        """Wakes the sender thread, which watches for new entries from then on."""
        if self._sender is None:
            self._sender = threading.Thread(target=self._look, name="remotegpu torch sender", daemon=True)
            self._sender.start()
        self._wake.set()

    def _look(self) -> None:
        while not self._closed:
            self._wake.wait()
            time.sleep(IDLE_S)
            if self.entries:
                # A thread that needs an answer will get the error of the lost acceptor itself.
                with contextlib.suppress(OffloadError):
                    self.flush()
                continue
            self._wake.clear()
            self.idle = True
            # An entry may be appended after the check, by a thread that does not yet see that the stream is idle.
            if self.entries:
                self._wake.set()


def _nobody() -> Peer:
    raise OffloadError(FORKED)
