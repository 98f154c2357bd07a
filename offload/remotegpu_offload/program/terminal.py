"""The client's half of a program's standard streams: writes the program's output, and reads its input."""

import codecs
import errno
import os
import select
import sys
from collections import deque
from typing import Any, Final

from remotegpu_offload.wire.errors import LostError
from remotegpu_offload.wire.frames import Message, Service
from remotegpu_offload.wire.peer import Peer
from remotegpu_offload.wire.request import Request

_LARGEST_READ: Final = 1 << 20
_LOOK_SECONDS: Final = 0.2
_FORGOTTEN: Final = 64


class Terminal:
    """Serves the standard streams to one session's acceptors.

    With `descriptors` the bytes are written to descriptors 1 and 2 unchanged: this process represents the program.
    Without, they are written to `sys.stdout` and `sys.stderr`, in order with this process's own output, also in a
    notebook.
    """

    def __init__(self, *, descriptors: bool) -> None:
        self._descriptors = descriptors
        self._decoders = {number: codecs.getincrementaldecoder("utf-8")("replace") for number in (1, 2)}
        # Names of reads that were interrupted, perhaps before they begin here, or after they have ended.
        self._forgotten: deque[str] = deque(maxlen=_FORGOTTEN)
        self._peer: Peer | None = None

    def attach(self, peer: Peer) -> None:
        self._peer = peer
        peer.serve(Service.STDIO, self.answer)

    def hello(self) -> dict[str, Any]:
        """Describes the streams for the program in the acceptor."""
        return {
            "tty": [self._is_tty(number) for number in (0, 1, 2)],
            "encoding": [_encoding(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
            "unbuffered": bool(getattr(sys.stdout, "write_through", False)),
            "size": terminal_size(),
            "program": self._descriptors,
        }

    def answer(self, request: Request) -> Message:
        match request.header.get("op"):
            case "write":
                number = request.header.get("fd")
                if number in (1, 2):
                    for buffer in request.buffers:
                        self._write(number, bytes(buffer))
                return Message({})
            case "read":
                count = max(1, min(int(request.header.get("count", 1)), _LARGEST_READ))
                return Message({}, [self._read(count, str(request.header.get("name")))])
            case "forget":
                # The waiting read was interrupted: the next input belongs to another read.
                self._forgotten.append(str(request.header.get("name")))
                return Message({})
            case other:
                raise ValueError(f"the terminal knows no {other!r}")

    def _is_tty(self, number: int) -> bool:
        if not self._descriptors:
            stream = (sys.stdin, sys.stdout, sys.stderr)[number]
            return stream is not None and not stream.closed and stream.isatty()
        try:
            return os.isatty(number)
        except OSError:
            return False

    def _write(self, number: int, content: bytes) -> None:
        if not self._descriptors:
            stream = sys.stdout if number == 1 else sys.stderr
            if stream is not None:
                stream.write(self._decoders[number].decode(content))
                stream.flush()
            return
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[os.write(number, rest) :]
        except BlockingIOError:
            select.select([], [number], [])
            self._write(number, bytes(rest))
        except OSError as error:
            self._tell_closed(number, error.errno or errno.EPIPE)

    def _tell_closed(self, number: int, reason: int) -> None:
        if self._peer is not None:
            try:
                self._peer.notify(Service.STDIO, {"op": "closed", "fd": number, "errno": reason})
            except LostError:
                return

    def _read(self, count: int, name: str) -> bytes:
        while self._peer is not None and not self._peer.closed.is_set() and name not in self._forgotten:
            try:
                ready, _, _ = select.select([0], [], [], _LOOK_SECONDS)
                if ready:
                    return os.read(0, count)
            except OSError:
                # Standard input is closed.
                return b""
        return b""


def terminal_size() -> list[int] | None:
    """Returns columns and lines of the terminal to which the program writes; None if there is no terminal."""
    for number in (1, 2, 0):
        try:
            size = os.get_terminal_size(number)
        except OSError:
            continue
        return [size.columns, size.lines]
    return None


def _encoding(stream: Any) -> list[str]:
    return [getattr(stream, "encoding", None) or "utf-8", getattr(stream, "errors", None) or "strict"]
