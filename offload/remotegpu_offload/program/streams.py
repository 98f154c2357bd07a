"""The acceptor's half of a program's standard streams.

Python's output is sent to the client at once and in order. C libraries and started programs write to descriptors 1 and
2: these are pipes, or pseudo terminals if the client's are terminals. This output is sent before the next output of
Python, so that a program that waits for a child shows both in the right order.
"""

import builtins
import contextlib
import ctypes
import errno
import fcntl
import io
import os
import pty
import select
import struct
import sys
import termios
import threading
import tty
from collections.abc import Mapping
from typing import Any, Final

from remotegpu_offload.code.link import Link
from remotegpu_offload.wire.errors import OffloadError
from remotegpu_offload.wire.frames import Service
from remotegpu_offload.wire.interrupts import Held

_PIECE: Final = 1 << 16
_BUFFER: Final = 8192


class Streams:
    """Replaces descriptors 0, 1, 2 and sys.stdin, sys.stdout, sys.stderr of this process; begins with `install`."""

    def __init__(self, link: Link, hello: Mapping[str, Any]) -> None:
        self.hello = hello
        self.link = link
        self.broken: dict[int, int] = {}
        self._pid = os.getpid()
        self._pipes: dict[int, int] = {}  # the reading end, by descriptor
        # Reentrant, because a signal handler may print while its thread is printing.
        self._lock = threading.RLock()

    def install(self) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        for number in (1, 2):
            ours, theirs = _pair(self.tty(number))
            os.dup2(theirs, number)
            os.close(theirs)
            os.set_blocking(ours, False)
            self._pipes[number] = ours
        self.resize(self.hello.get("size"))
        threading.Thread(target=self._pump, name="remotegpu output", daemon=True).start()
        self.open_python()

    def open_python(self) -> None:
        """Opens new sys.stdin, sys.stdout and sys.stderr."""
        program = bool(self.hello.get("program"))
        encodings = self.hello.get("encoding") or [["utf-8", "strict"]] * 3
        unbuffered = bool(self.hello.get("unbuffered"))
        _install("stdin", _text(io.BufferedReader(Input(self), _BUFFER), encodings[0]))
        builtins.input = _input
        for number, name in ((1, "stdout"), (2, "stderr")):
            output = Output(self, number, 0 if unbuffered else _BUFFER)
            # In function mode nothing flushes the stream after a function has printed.
            lines = number == 2 or not program or self.tty(number)
            _install(name, _text(output, encodings[number], lines=lines, at_once=unbuffered))

    def resize(self, size: Any) -> None:
        """Sets the size of the pseudo terminals to the columns and lines of the client's terminal."""
        if size is None:
            return
        packed = struct.pack("HHHH", int(size[1]), int(size[0]), 0, 0)
        for number, pipe in self._pipes.items():
            if self.tty(number):
                with contextlib.suppress(OSError):
                    fcntl.ioctl(pipe, termios.TIOCSWINSZ, packed)

    def tty(self, number: int) -> bool:
        """Returns whether the client's stream is a terminal."""
        return bool((self.hello.get("tty") or [False] * 3)[number])

    def is_own_process(self) -> bool:
        """Returns whether this is the session's own process and not a forked child."""
        return os.getpid() == self._pid

    def write(self, number: int, content: bytes) -> None:
        if not self.is_own_process():
            # In a forked child: the parent reads the other end of the pipe.
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(number, rest) :]
            return
        with self._lock:
            if number in self.broken:
                raise OSError(self.broken[number], os.strerror(self.broken[number]))
            self._drain()
            self._send(number, content)

    def finish(self) -> None:
        """Sends all output that Python and others have written."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
        ctypes.CDLL(None).fflush(None)
        if self.is_own_process():
            with self._lock:
                self._drain()

    def _send(self, number: int, content: bytes) -> None:
        try:
            self.link.notify(Service.STDIO, {"op": "write", "fd": number}, [content])
        except OffloadError as error:
            self.broken[number] = errno.EPIPE
            raise BrokenPipeError(errno.EPIPE, str(error)) from None

    def _drain(self) -> None:
        for number, pipe in self._pipes.items():
            while True:
                try:
                    content = os.read(pipe, _PIECE)
                except OSError:
                    # No data is available now, or all other ends of the terminal are closed.
                    break
                if not content:
                    break
                if number not in self.broken:
                    with contextlib.suppress(BrokenPipeError):
                        self._send(number, content)

    def _pump(self) -> None:
        pipes = list(self._pipes.values())
        while True:
            select.select(pipes, [], [])
            with self._lock:
                self._drain()


class Output(io.BufferedIOBase):
    """A buffered file below `sys.stdout` or `sys.stderr`, which writes to `Streams`.

    `io.BufferedWriter` does not fit: it holds its lock while it calls the raw file. A signal handler that prints would
    then fail. After an exception the buffer would still hold data that was already sent, and would send it again.
    """

    mode = "wb"

    def __init__(self, streams: Streams, number: int, size: int) -> None:
        super().__init__()
        self.name = f"<{('', 'stdout', 'stderr')[number]}>"
        self.raw = self
        self._streams = streams
        self._number = number
        self._size = size
        self._pending = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        if self.closed:
            raise ValueError("write to closed file")
        data = bytes(content)
        with Held():
            self._pending += data
            if len(self._pending) > self._size:
                self.flush()
        return len(data)

    def flush(self) -> None:
        empty = bytearray()
        with Held():
            # No call in this line, so that no signal handler can run in between.
            content, self._pending = self._pending, empty
            if content:
                self._streams.write(self._number, bytes(content))

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return self._streams.tty(self._number)


class Input(io.RawIOBase):
    """The raw file below sys.stdin. Reads from the client only when the program reads."""

    name = "<stdin>"
    mode = "rb"

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._streams = streams

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        name = os.urandom(8).hex()
        try:
            reply = self._streams.link.request(Service.STDIO, {"op": "read", "count": len(view), "name": name})
        except KeyboardInterrupt:
            self._streams.link.notify(Service.STDIO, {"op": "forget", "name": name})
            raise
        content = reply.buffers[0]
        view[: len(content)] = content
        return len(content)

    def fileno(self) -> int:
        return 0

    def isatty(self) -> bool:
        return self._streams.tty(0)


_builtin_input: Final = builtins.input


def _input(prompt: object = "", /) -> str:
    """Replaces `input`: the interpreter's own ignores a KeyboardInterrupt that is raised while it flushes a stream."""
    stdin = sys.stdin
    if stdin is not sys.__stdin__ or stdin is None or sys.stdout is None:
        return _builtin_input(prompt)
    sys.audit("builtins.input", prompt)
    with Held():
        if sys.stderr is not None:
            sys.stderr.flush()
        sys.stdout.write(str(prompt))
        sys.stdout.flush()
    line = str(stdin.readline())
    if not line:
        raise EOFError("EOF when reading a line")
    sys.audit("builtins.input/result", line)
    return line.removesuffix("\n")


def _text(buffered: Any, encoding: list[str], *, lines: bool = False, at_once: bool = False) -> io.TextIOWrapper:
    return io.TextIOWrapper(buffered, encoding[0], encoding[1], line_buffering=lines, write_through=at_once)


def _install(name: str, stream: io.TextIOWrapper) -> None:
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _pair(terminal: bool) -> tuple[int, int]:
    """Returns a pipe or pseudo terminal: the end that this process reads, and the end to which others write."""
    if terminal:
        # The sandbox may have no pseudo terminals.
        with contextlib.suppress(OSError):
            ours, theirs = pty.openpty()
            # The client's own terminal translates newlines.
            tty.setraw(theirs)
            return ours, theirs
    return os.pipe()
