"""Sends and receives whole frames on a socket: sends from many threads, receives on one."""

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence

from remotegpu_offload.wire.errors import LostError
from remotegpu_offload.wire.frames import Buffer
from remotegpu_offload.wire.interrupts import Allowed, pending

_BUFFERED = 256 << 10
_IOV_MAX = 1024
# Plain integers, because combining enums takes longer than sending.
_WAITING = int(socket.MSG_NOSIGNAL)
_AT_ONCE = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
# How long Ctrl-C may go unnoticed while another thread sends, in seconds.
_PATIENCE_SECONDS = 0.1
# How often a thread that waits for its frame to be sent checks whether the sender was stopped, in seconds.
_LOOK_SECONDS = 0.5
# The limit for answers that the other side does not receive, in bytes.
_MAX_OUTBOX = 512 << 20


class _Entry:
    """A frame, or the rest of one, that waits to be sent."""

    __slots__ = ("done", "rest", "size")

    def __init__(self, rest: list[memoryview]) -> None:
        self.rest = rest
        self.size = sum(map(len, rest))
        self.done = threading.Event()


class Sender:
    """Sends whole frames in order.

    Bytes that cannot be sent at once are left to a writer thread. A receiving thread must never wait until the other
    side receives, because two such threads would deadlock. A waiting thread must hold no lock, because a signal handler
    of the program may run in the meantime, and send.
    """

    def __init__(self, sock: socket.socket, name: str, lost: Callable[[str], None]) -> None:
        self._sock = sock
        self._name = name
        self._on_lost = lost
        self._lock = threading.Lock()
        self._outbox: deque[_Entry] = deque()
        self._filled = threading.Event()
        self._writer: threading.Thread | None = None
        self._stopped = False
        self.bytes_out = 0

    def send(self, parts: Sequence[Buffer], *, wait: bool) -> None:
        """Sends a frame. If `wait` is false, leaves the rest to the writer thread. The main thread must call it inside
        `Held`.

        Raises:
            KeyboardInterrupt: the rest will still be sent.
            OSError: the connection ended.
            LostError: the other side does not receive.
        """
        rest = [memoryview(part) for part in parts if len(part)]
        while not self._lock.acquire(blocking=wait, timeout=_PATIENCE_SECONDS if wait else -1):
            if not wait:
                self._leave(rest)
                return
            if pending():
                raise KeyboardInterrupt
        entry = None
        first = not self._outbox
        try:
            if first:
                self._write(rest, _AT_ONCE)
        finally:
            # A partial frame would break the connection, and so would another thread's frame within this one.
            try:
                if rest:
                    entry = self._leave(rest, first=first, limited=not wait)
            finally:
                self._lock.release()
        if wait and entry is not None:
            with Allowed():
                while not entry.done.wait(_LOOK_SECONDS):
                    if self._stopped:
                        raise LostError(f"{self._name} is gone")

    def stop(self) -> None:
        """Ends the writer thread, because the connection is lost or about to be closed."""
        self._stopped = True
        self._filled.set()

    def _write(self, rest: list[memoryview], flags: int) -> None:
        while rest:
            counts: list[int] = []
            try:
                # The same C call sends and stores the count, so that no interrupt can come in between.
                counts.extend(map(self._sock.sendmsg, (rest[:_IOV_MAX],), ((),), (flags,)))
            except BlockingIOError:
                return
            finally:
                for count in counts:
                    self.bytes_out += count
                    consume(rest, count)

    def _leave(self, rest: list[memoryview], *, first: bool = False, limited: bool = True) -> _Entry:
        entry = _Entry(rest)
        if limited and entry.size + sum(each.size for each in list(self._outbox)) > _MAX_OUTBOX:
            raise LostError(f"{self._name} takes none of the answers that it asked for")
        (self._outbox.appendleft if first else self._outbox.append)(entry)
        self._filled.set()
        if self._writer is None:
            self._writer = threading.Thread(target=self._run, name=f"remotegpu writer {self._name}", daemon=True)
            self._writer.start()
        return entry

    def _run(self) -> None:
        while True:
            self._filled.wait()
            self._filled.clear()
            if self._stopped:
                return
            try:
                with self._lock:
                    while self._outbox:
                        self._write(self._outbox[0].rest, _WAITING)
                        self._outbox.popleft().done.set()
            except (OSError, ValueError) as error:
                self._on_lost(str(error))
                return


def consume(rest: list[memoryview], count: int) -> None:
    """Removes `count` bytes from the front of a list of buffers."""
    done = 0
    while done < len(rest) and count >= len(rest[done]):
        count -= len(rest[done])
        done += 1
    del rest[:done]
    if count:
        rest[0] = rest[0][count:]


class Receiver:
    """Reads exact numbers of bytes: small reads use a buffer, large reads go directly to their own memory."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._memory = bytearray(_BUFFERED)
        self._view = memoryview(self._memory)
        self._at = 0
        self._end = 0
        self.bytes_in = 0

    def read(self, count: int) -> bytearray:
        """Reads `count` bytes into new memory. Blocks.

        Raises:
            EOFError: the other side has closed the connection.
            OSError: the connection broke.
        """
        if self._end - self._at >= count:
            self._at += count
            return self._memory[self._at - count : self._at]
        result = bytearray(count)
        view = memoryview(result)
        have = self._end - self._at
        view[:have] = self._view[self._at : self._end]
        self._at = self._end = 0
        while count - have >= _BUFFERED:
            have += self._receive(view[have:])
        while have < count:
            self._end = self._receive(self._view)
            self._at = min(self._end, count - have)
            view[have : have + self._at] = self._view[: self._at]
            have += self._at
        return result

    def _receive(self, into: memoryview) -> int:
        count = self._sock.recv_into(into)
        if not count:
            raise EOFError
        self.bytes_in += count
        return count
