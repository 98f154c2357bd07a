"""The two ends of a connection, which send requests to each other.

`threads` decides which thread executes a request.
"""

import contextlib
import itertools
import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from queue import Empty
from typing import Any, Final

from remotegpu_offload.wire.activity import Activity
from remotegpu_offload.wire.errors import FrameError, LostError, OffloadError, RemoteFailure, how_ended
from remotegpu_offload.wire.frames import Buffer, Frame, Kind, Message, Service, encode, read_frame
from remotegpu_offload.wire.interrupts import Allowed, Held, take_nudges
from remotegpu_offload.wire.request import Counters, Deferred, Handler, Request
from remotegpu_offload.wire.stream import Receiver, Sender
from remotegpu_offload.wire.threads import Mailbox, Threads

# A signal just before a thread begins to wait does not wake the thread, so it checks at this interval.
_LOOK_SECONDS: Final = 0.5

log = logging.getLogger("remotegpu_offload")


class _Wait:
    """A sent request that has no answer yet."""

    __slots__ = ("answer", "mailbox")

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.answer: Frame | None = None


class Peer:
    """One end of a connection. Thread-safe.

    Args:
        sock: a connected stream socket, which the peer closes.
        name: the other side for users, such as "acceptor cpu at gpu1:7071".
        accepting: True at the acceptor's end. The two ends number the logical threads that they begin differently.
        exit_code: called after the other side has closed the connection. Returns the exit code of its process, or minus
            the signal that ended it; 0 if it ended normally or the code is unknown.

    >>> ours, theirs = socket.socketpair()
    >>> acceptor = Peer(theirs, name="the program", accepting=True)
    >>> acceptor.serve(Service.CALL, lambda asked: Message({"sum": asked.header["a"] + asked.header["b"]}))
    >>> acceptor.start()
    >>> program = Peer(ours, name="the acceptor")
    >>> program.start()
    >>> program.request(Service.CALL, {"a": 1, "b": 2}).header["sum"]
    3
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        name: str,
        accepting: bool = False,
        exit_code: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        self.exit_code = exit_code or (lambda: 0)
        self.closed = threading.Event()
        self.on_lost: list[Callable[[str], None]] = []
        self.counters = Counters()
        self.activity: Activity[Peer] = Activity(name)
        self.threads = Threads(name, accepting, self.activity, self._handle)
        self._sock = sock
        self._accepting = accepting
        self._sender = Sender(sock, name, self._lose)
        self._receiver = Receiver(sock)
        self._handlers: dict[Service, tuple[Handler, bool]] = {}
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Wait] = {}
        self._why = ""
        self._reader: threading.Thread | None = None

    def serve(self, service: Service, handler: Handler, *, inline: bool = False) -> None:
        """Registers `handler` for the requests and notices of a service.

        Notices, and requests of an `inline` service, are handled on the receiving thread in the order of arrival. Such
        a handler must be quick, and must not send requests.
        """
        self._handlers[service] = (handler, inline)

    def start(self) -> None:
        """Starts the receiving thread. Register services that the first message may need before."""
        if self._reader is not None:
            return
        self._reader = threading.Thread(target=self._receive, name=f"remotegpu reader {self.name}", daemon=True)
        self._reader.start()

    def run_main(self) -> None:
        """Starts the peer if necessary, and executes logical thread 1 in the calling thread until the peer is closed.
        Blocks.

        Raises:
            OffloadError: logical thread 1 has a thread already.
        """
        mailbox = self.threads.take_main()
        take_nudges()
        self.start()
        self.threads.run_main(mailbox, self.closed)

    def request(
        self,
        service: Service,
        header: dict[str, Any] | None = None,
        buffers: Sequence[Buffer] = (),
        *,
        timeout: float | None = None,
    ) -> Message:
        """Sends a request and waits for the answer. Ctrl-C asks the other side to stop; a second Ctrl-C stops waiting.

        Args:
            timeout: in seconds; a later answer is dropped.

        Raises:
            RemoteFailure: the answer is a failure.
            LostError: the other side is lost.
            TimeoutError: no answer arrived in time.
            KeyboardInterrupt: after Ctrl-C, once the other side has answered.
        """
        if threading.current_thread() is self._reader:
            raise OffloadError("a handler on the receiving thread asked the other side something: serve it not inline")
        mailbox = self.threads.mailbox()
        with Held(mailbox.wake) as held:
            return self._request(service, header or {}, buffers, timeout, mailbox, held)

    def _request(
        self,
        service: Service,
        header: dict[str, Any],
        buffers: Sequence[Buffer],
        timeout: float | None,
        mailbox: Mailbox,
        held: Held,
    ) -> Message:
        thread = self.threads.number()
        number = next(self._ids)
        parts = encode(Frame(Kind.REQUEST, service, thread, number, header, buffers))
        wait = _Wait(mailbox)
        with self.activity.lock:
            if (successor := self.activity.enter()) is None:
                self._waiting[number] = wait
                self.threads.begin_wait(thread, mailbox)
                self.counters.round_trips += 1
                self.counters.by_service[service.name] += 1
        if successor is not None:
            return successor.request(service, header, buffers, timeout=timeout)
        try:
            try:
                self._send(parts)
            except KeyboardInterrupt:
                # The rest of the request will still be sent.
                self._sender.send(_cancelling(thread), wait=False)
                raise
            answer = self._await(wait, thread, timeout, held)
        finally:
            with self.activity.lock:
                self.activity.end()
                self._waiting.pop(number, None)
                self.threads.end_wait(thread, mailbox)
        if answer.kind is Kind.FAILURE:
            details = answer.header.get("details")
            raise RemoteFailure(str(answer.header.get("error")), details if isinstance(details, dict) else {})
        return Message(answer.header, answer.buffers)

    def notify(self, service: Service, header: dict[str, Any] | None = None, buffers: Sequence[Buffer] = ()) -> None:
        """Sends a notice, which needs no answer. The other side handles it after everything that was sent before.

        Raises:
            LostError: the other side is lost.
        """
        parts = encode(Frame(Kind.NOTICE, service, self.threads.number(), 0, header or {}, buffers))
        with Held():
            with self.activity.lock:
                if (successor := self.activity.enter()) is None:
                    self.counters.notices += 1
            if successor is not None:
                successor.notify(service, header, buffers)
                return
            try:
                self._send(parts)
            finally:
                with self.activity.lock:
                    self.activity.end()

    def close(self) -> None:
        """Closes the connection; waiting threads get a LostError. A second call does nothing."""
        self._lose("it was closed here", ours=True)
        reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            reader.join()
        self._sock.close()

    def abandon(self, reason: str) -> None:
        """Drops the connection in a forked child. It belongs to the parent, whose threads may hold the locks."""
        self.activity.abandon(reason)
        self._sock.close()
        self.closed = threading.Event()
        self.closed.set()

    def expect_end(self, why: str) -> None:
        """Stores the reason that the other side gives before it closes, for the LostError."""
        self._why = why

    # Sending

    def _send(self, parts: Sequence[Buffer]) -> None:
        try:
            self._sender.send(parts, wait=threading.current_thread() is not self._reader)
        except (OSError, ValueError, LostError) as error:
            self._lose(str(error))
            raise LostError(self.activity.lost) from None
        self.counters.bytes_out = self._sender.bytes_out

    def _answer(self, parts: Sequence[Buffer]) -> None:
        try:
            if not self.activity.lost:
                self._send(parts)
        except LostError:
            log.debug("an answer to %s is lost", self.name)

    def _await(self, wait: _Wait, thread: int, timeout: float | None, held: Held) -> Frame:
        deadline = None if timeout is None else time.monotonic() + timeout
        asked_to_stop = False
        while True:
            held.deliver()
            if held.count > asked_to_stop:
                if asked_to_stop or self._accepting:
                    held.forget()
                    raise KeyboardInterrupt
                asked_to_stop = True
                self._send(_cancelling(thread))
            if wait.mailbox.inbox:
                self.threads.execute_next(wait.mailbox)
            elif wait.answer is not None:
                return wait.answer
            elif self.activity.lost:
                raise LostError(self.activity.lost)
            elif deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(
                    f"no answer from {self.name} within {timeout:g} s; see its log, and check the network"
                )
            else:
                left = _LOOK_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
                with contextlib.suppress(Empty):
                    wait.mailbox.wake.get(timeout=min(left, _LOOK_SECONDS))

    # Receiving

    def _receive(self) -> None:
        # A pause must not delay messages of handlers on this thread, because the pausing thread waits for this one.
        self.activity.never_pause_this_thread()
        try:
            while True:
                frame = read_frame(self._receiver.read)
                self.counters.bytes_in = self._receiver.bytes_in
                if frame.kind is Kind.REQUEST or frame.kind is Kind.NOTICE:
                    self._take(frame)
                    continue
                with self.activity.lock:
                    wait = self._waiting.get(frame.id)
                if wait is not None:
                    wait.answer = frame
                    wait.mailbox.wake.put(None)
        except EOFError:
            self._lose(how_ended(self.exit_code()))
        except FrameError as error:
            self._lose(f"it does not speak this protocol: {error}")
        except (OSError, ValueError) as error:
            self._lose(str(error))
        except MemoryError:
            self._lose("what it sends does not fit into memory")

    def _take(self, frame: Frame) -> None:
        if (frame.id == 0) is not (frame.kind is Kind.NOTICE):
            raise FrameError(f"a {frame.kind.name.lower()} with the id {frame.id}")
        request = Request(self._answer, frame)
        served = self._handlers.get(frame.service)
        if frame.kind is Kind.NOTICE or served is None or served[1]:
            self._handle(request)
        else:
            self.threads.take(request)

    def _handle(self, request: Request) -> None:
        """Executes a request, and always answers it."""
        try:
            with Allowed():
                self._call(request)
        except BaseException as error:
            if request.id == 0:
                log.exception("a notice of %s failed", self.name)
            text = str(error) or type(error).__name__
            request.fail(text, type=type(error).__name__, traceback="".join(traceback.format_exception(error)))

    def _call(self, request: Request) -> None:
        served = self._handlers.get(request.service)
        if served is None:
            request.fail(f"{request.service.name} is not served on this side", type="NotServed")
            return
        if request.id:
            self.counters.served[request.service.name] += 1
        result = served[0](request)
        if isinstance(result, Deferred):
            return
        if result is None:
            request.reply({})
        else:
            request.reply(result.header, result.buffers)

    def _lose(self, why: str, *, ours: bool = False) -> None:
        with self.activity.lock:
            if self.activity.lost:
                return
            if ours:
                reason = f"the connection to {self.name} was closed"
            else:
                reason = (
                    f"{self.name} is gone ({self._why or why}); see its log on the appliance, then start the program "
                    "again, or let it go on elsewhere with `on_disconnect: resume 60s` in remotegpu.yaml"
                )
            self.activity.lose(reason)
            mailboxes = self.threads.mailboxes()
        self._sender.stop()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self.closed.set()
        for mailbox in mailboxes:
            mailbox.wake.put(None)
        if not ours:
            for callback in list(self.on_lost):
                callback(reason)


def _cancelling(thread: int) -> Sequence[Buffer]:
    return encode(Frame(Kind.NOTICE, Service.SESSION, thread, 0, {"op": "cancel", "thread": thread}, ()))
