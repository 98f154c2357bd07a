"""The keeper: process 1 of a session's PID namespace, between the appliance and the process that serves the client.

The keeper has one thread and never runs code of the client, so that code cannot keep it from ending the session. When
the keeper ends, the kernel ends every process of the session.
"""

import contextlib
import os
import select
import signal
import socket
import time
from typing import Final

from remotegpu_offload.acceptor import packets

_END_SECONDS: Final = 1.0
# The appliance's log receives at most this many lines that a session writes past its capture of standard output.
MOST_LOG_LINES: Final = 200
_MOST_LINE: Final = 500


class Log:
    """Reads lines from a pipe and sends them to the appliance as packets."""

    def __init__(self, pipe: int, control: socket.socket) -> None:
        self.pipe = pipe
        self._control = control
        self._begun = b""
        self._left = MOST_LOG_LINES

    def read(self) -> bool:
        """Waits for output and sends it; False at EOF."""
        data = os.read(self.pipe, 4096)
        *lines, self._begun = (self._begun + data).split(b"\n")
        self._begun = self._begun[-_MOST_LINE:]
        for line in lines if data else [self._begun]:
            if line and self._left:
                self._left -= 1
                packets.send(self._control, {"op": "log", "line": line[:_MOST_LINE].decode(errors="replace")})
        return bool(data)

    def pass_on(self) -> None:
        """Sends all output until EOF. Blocks: where no keeper runs, a thread of its own calls it."""
        with contextlib.suppress(OSError):
            while self.read():
                pass


def keep(child: int, control: socket.socket, link: socket.socket, log: int) -> int:
    """Serves until `child` has ended, or the appliance has closed its end. Returns the exit code for this process."""
    return _Keeper(child, control, link, Log(log, control)).run()


class _Keeper:
    def __init__(self, child: int, control: socket.socket, link: socket.socket, log: Log) -> None:
        self._child = child
        self._control = control
        self._link = link
        self._log = log
        self._deadline: float | None = None
        self._watched = {control.fileno(), link.fileno(), log.pipe}

    def run(self) -> int:
        # This is the first process of a PID namespace: the kernel ignores unhandled signals that come from inside.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        woken = wake_on_child()
        self._watched.add(woken)
        while (code := self._reap()) is None:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            ready = select.select(list(self._watched), [], [], left)[0]
            if self._deadline is not None and not ready:
                os.kill(self._child, signal.SIGKILL)
                self._deadline = None
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
            if self._control.fileno() in ready and not self._pass_order():
                return 0  # the appliance is gone; the kernel ends the rest with this process
            if self._link.fileno() in ready:
                self._pass_news()
            if self._log.pipe in ready and not self._log.read():
                self._watched.discard(self._log.pipe)
        self._finish_log()
        return code

    def _pass_order(self) -> bool:
        """Forwards an order of the appliance, which is always to end, and sets the deadline for ending.

        False at EOF.
        """
        order = packets.receive(self._control)
        if order is None:
            return False
        with contextlib.suppress(OSError):
            packets.send(self._link, order[0])
        self._deadline = time.monotonic() + _END_SECONDS
        return True

    def _pass_news(self) -> None:
        said = packets.receive(self._link)
        if said is None:
            self._watched.discard(self._link.fileno())
            return
        for descriptor in said[1]:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            packets.send(self._control, said[0])

    def _finish_log(self) -> None:
        """Sends the output that is already in the pipe.

        Does not wait: processes that still hold the pipe are about to end.
        """
        with contextlib.suppress(OSError):
            while self._log.pipe in self._watched and select.select([self._log.pipe], [], [], 0)[0]:
                if not self._log.read():
                    return

    def _reap(self) -> int | None:
        """Collects children that have ended.

        Returns the exit code of the served child if it has ended, negative for a signal; None otherwise.
        """
        for pid, code in ended_children():
            if pid == self._child:
                return code
        return None


def wake_on_child() -> int:
    """Returns a descriptor that is readable when a child has ended."""
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return woken


def ended_children() -> list[tuple[int, int]]:
    """Returns process ids and exit codes (negative for a signal) of children that have ended since the last call."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, os.waitstatus_to_exitcode(status)))
