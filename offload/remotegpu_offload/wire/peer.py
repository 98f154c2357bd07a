"""The two ends of a connection, which ask things of each other.

A logical thread is one line of execution that crosses the wire: a thread of the program, the thread of the acceptor
that executes what it asks, and again the program's thread when that calls back. While a thread waits for a reply it
executes the requests of its own logical thread, so callbacks nest, and locks and thread-locals mean what they mean in
one process.
"""

import contextlib
import ctypes
import itertools
import logging
import signal
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

from remotegpu_offload.wire.errors import FrameError, LostError, OffloadError, RemoteFailure, how_ended
from remotegpu_offload.wire.frames import Buffer, Frame, Kind, Message, Service, encode, read_frame
from remotegpu_offload.wire.interrupts import Allowed, Held, nudge, take_nudges
from remotegpu_offload.wire.request import Counters, Deferred, Handler, Request
from remotegpu_offload.wire.stream import Receiver, Sender

MAIN_THREAD: Final = 1
# How long a thread of ours waits for more work of its logical thread.
_IDLE_SECONDS: Final = 5.0
# A signal that comes just before a thread begins to wait does not wake it: how often it looks.
_LOOK_SECONDS: Final = 0.5
_MAX_THREADS: Final = 1024
# With so many, one that is idle ends for another: a program may start a thread for each call.
_MANY_THREADS: Final = 256

log = logging.getLogger("remotegpu_offload")


class _Mailbox:
    """Where the receiving thread leaves what one thread of this process shall do, and wakes it."""

    __slots__ = ("inbox", "wake")

    def __init__(self) -> None:
        self.inbox: deque[Request] = deque()
        # Only a signal that something has changed: what has is looked up, so none is missed or too many.
        self.wake: SimpleQueue[None] = SimpleQueue()


class _Wait:
    """A request of ours that has no answer yet."""

    __slots__ = ("answer", "mailbox")

    def __init__(self, mailbox: _Mailbox) -> None:
        self.mailbox = mailbox
        self.answer: Frame | None = None


class _Logical:
    """A logical thread: who waits in it here, innermost last, and which thread executes when nobody does."""

    __slots__ = ("executor", "runner", "waits")

    def __init__(self) -> None:
        self.waits: list[_Mailbox] = []
        self.runner: _Mailbox | None = None
        # The thread of this process that executes a request, 0 if none does.
        self.executor = 0


class _Local(threading.local):
    """Of each thread of this process. `depth`: requests that it waits for or executes, one inside the other."""

    logical: int = 0
    mailbox: _Mailbox | None = None
    depth: int = 0


class Peer:
    """One end of a connection. Threads share it.

    Args:
        sock: a connected stream socket, which the peer closes.
        name: of the other side, for people: "acceptor cpu at gpu1:7071".
        accepting: this is the acceptor's end. The logical threads that begin at one end have other numbers than those
            of the other end.
        exit_code: asked when the other side has closed the connection: of its process, or minus the signal that ended
            it; 0 where it ended in order, or nobody knows.
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
        self._sock = sock
        self._accepting = accepting
        self._sender = Sender(sock, name, self._lose)
        self._receiver = Receiver(sock)
        self._handlers: dict[Service, tuple[Handler, bool]] = {}
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._thread_ids = itertools.count(2 if accepting else 3, 2)
        self._waiting: dict[int, _Wait] = {}
        self._logical: dict[int, _Logical] = {}
        self._local = _Local()
        self._lost: str | None = None
        self._why = ""
        # What is running, and who has paused the rest.
        self._active = 0
        self._paused_by = 0
        self._changed = threading.Condition(self._lock)
        self._successor: Peer | None = None
        self._reader: threading.Thread | None = None

    def serve(self, service: Service, handler: Handler, *, inline: bool = False) -> None:
        """Has `handler` answer the requests and notices of a service.

        Notices, and requests of an `inline` service, are handled on the receiving thread in the order in which they
        arrive: quickly, and without a request of one's own.
        """
        self._handlers[service] = (handler, inline)

    def start(self) -> None:
        """Begins to receive. Whatever must be served from the first message on is served before."""
        if self._reader is not None:
            return
        self._reader = threading.Thread(target=self._receive, name=f"remotegpu reader {self.name}", daemon=True)
        self._reader.start()

    def run_main(self) -> None:
        """Starts if need be, and lends the calling thread to logical thread 1 until the peer is closed.

        Raises:
            OffloadError: logical thread 1 has a thread already.
        """
        mailbox = self._mailbox()
        with self._lock:
            logical = self._logical.setdefault(MAIN_THREAD, _Logical())
            if logical.runner is not None:
                raise OffloadError("logical thread 1 has a thread already: call run_main before start")
            logical.runner = mailbox
        take_nudges()
        self.start()
        self._local.logical = MAIN_THREAD
        with Held() as held:
            while not self.closed.is_set() or mailbox.inbox:
                # It was meant for a request that has just ended.
                held.forget()
                if mailbox.inbox:
                    self._execute_next(mailbox)
                else:
                    mailbox.wake.get()
            held.forget()

    def request(
        self,
        service: Service,
        header: dict[str, Any] | None = None,
        buffers: Sequence[Buffer] = (),
        *,
        timeout: float | None = None,
    ) -> Message:
        """Asks and waits for the answer. Ctrl-C asks the other side to stop; a second one gives up waiting.

        Args:
            timeout: in seconds; the answer of a request that was given up is dropped.

        Raises:
            RemoteFailure: the answer is a failure.
            LostError: the other side is gone.
            TimeoutError: no answer in time.
            KeyboardInterrupt: after Ctrl-C, once the other side has answered.
        """
        if threading.current_thread() is self._reader:
            raise OffloadError("a handler on the receiving thread asked the other side something: serve it not inline")
        mailbox = self._mailbox()
        with Held(mailbox.wake) as held:
            return self._request(service, header or {}, buffers, timeout, mailbox, held)

    def _request(
        self,
        service: Service,
        header: dict[str, Any],
        buffers: Sequence[Buffer],
        timeout: float | None,
        mailbox: _Mailbox,
        held: Held,
    ) -> Message:
        thread = self._thread()
        number = next(self._ids)
        parts = encode(Frame(Kind.REQUEST, service, thread, number, header, buffers))
        wait = _Wait(mailbox)
        with self._lock:
            if (successor := self._enter()) is not None:
                return successor.request(service, header, buffers, timeout=timeout)
            self._waiting[number] = wait
            logical = self._logical.get(thread) or self._logical.setdefault(thread, _Logical())
            logical.waits.append(mailbox)
            self.counters.round_trips += 1
            self.counters.by_service[service.name] += 1
        try:
            try:
                self._send(parts)
            except KeyboardInterrupt:
                # What is left of the request will still be sent.
                self._sender.send(self._cancelling(thread), wait=False)
                raise
            answer = self._await(wait, thread, timeout, held)
        finally:
            with self._lock:
                self._exit()
                self._waiting.pop(number, None)
                self._leave(logical, thread, mailbox)
        if answer.kind is Kind.FAILURE:
            details = answer.header.get("details")
            raise RemoteFailure(str(answer.header.get("error")), details if isinstance(details, dict) else {})
        return Message(answer.header, answer.buffers)

    def notify(self, service: Service, header: dict[str, Any] | None = None, buffers: Sequence[Buffer] = ()) -> None:
        """Says something that needs no answer: it is handled after all that was sent before it.

        Raises:
            LostError: the other side is gone.
        """
        parts = encode(Frame(Kind.NOTICE, service, self._thread(), 0, header or {}, buffers))
        with Held():
            with self._lock:
                if (successor := self._enter()) is None:
                    self.counters.notices += 1
            if successor is not None:
                successor.notify(service, header, buffers)
                return
            try:
                self._send(parts)
            finally:
                with self._lock:
                    self._exit()

    def interrupt(self, thread: int) -> bool:
        """Raises KeyboardInterrupt in what is executed here for a logical thread, and fails what waits to be executed.

        False if there is neither.
        """
        waiting: list[Request] = []
        with self._lock:
            logical = self._logical.get(thread)
            if logical is None:
                return False
            if not logical.executor:
                if logical.runner is not None:
                    waiting.extend(logical.runner.inbox)
                    logical.runner.inbox.clear()
            else:
                self._raise_in(logical)
                return True
        for request in waiting:
            request.fail("it was interrupted before it began", type="KeyboardInterrupt")
        return bool(waiting)

    def _raise_in(self, logical: _Logical) -> None:
        """KeyboardInterrupt in the thread that executes. With the lock."""
        if logical.executor == threading.main_thread().ident:
            signal.pthread_kill(logical.executor, signal.SIGINT)
            nudge()
        else:
            kind = ctypes.py_object(KeyboardInterrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(logical.executor), kind)
        for mailbox in (*logical.waits, logical.runner):
            if mailbox is not None:
                mailbox.wake.put(None)

    def close(self) -> None:
        """Ends the connection; waiting threads get a LostError. Calling it twice does nothing."""
        self._lose("it was closed here", ours=True)
        reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            reader.join()
        self._sock.close()

    def abandon(self, reason: str) -> None:
        """In a forked child: forgets the connection, its parent's, whose threads may hold the locks."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._paused_by = 0
        self._lost = reason
        self._sock.close()
        self.closed = threading.Event()
        self.closed.set()

    @property
    def lost_reason(self) -> str:
        """Why it is closed, for the LostError; empty while it is not."""
        return self._lost or ""

    def expect_end(self, why: str) -> None:
        """The other side has said why it is going to close: for the LostError."""
        self._why = why

    # Pausing, for a move to another acceptor

    def pause(self, timeout: float | None = None) -> None:
        """Wait until nothing is asked or executed in either direction, and let only the calling thread begin anything.

        Raises:
            OffloadError: the calling thread is itself in a request.
            TimeoutError: what is running took longer than `timeout` seconds; nothing is paused.
        """
        if self._local.depth:
            raise OffloadError("a session cannot move while it executes a call of this thread: move it after the call")
        me = threading.get_ident()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._wait_until(lambda: not self._paused_by, deadline)
            self._paused_by = me
            try:
                self._wait_until(lambda: not self._active, deadline)
            except BaseException:
                self._paused_by = 0
                self._changed.notify_all()
                raise

    def resume(self, successor: "Peer | None" = None) -> None:
        """Let everybody continue: here, or with the peer that takes this one's place from now on."""
        with self._lock:
            self._paused_by = 0
            self._successor = successor or self._successor
            self._changed.notify_all()

    def _wait_until(self, condition: Callable[[], bool], deadline: float | None) -> None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._changed.wait_for(condition, left):
            raise TimeoutError(f"{self.name} is still busy with calls; try again when they have ended")

    def _enter(self) -> "Peer | None":
        """Begin something: with the returned peer if this one has a successor. With the lock."""
        local = self._local
        if self._paused_by and not local.depth and self._paused_by != threading.get_ident():
            self._changed.wait_for(lambda: not self._paused_by or self._lost is not None)
        if self._successor is not None and not local.depth:
            return self._successor
        if self._lost is not None:
            raise LostError(self._lost)
        local.depth += 1
        self._active += 1
        return None

    def _exit(self) -> None:
        """With the lock."""
        self._local.depth -= 1
        self._active -= 1
        if not self._active and self._paused_by:
            self._changed.notify_all()

    # Sending

    def _send(self, parts: Sequence[Buffer]) -> None:
        try:
            self._sender.send(parts, wait=threading.current_thread() is not self._reader)
        except (OSError, ValueError, LostError) as error:
            self._lose(str(error))
            raise LostError(self._lost) from None
        self.counters.bytes_out = self._sender.bytes_out

    def _answer(self, parts: Sequence[Buffer]) -> None:
        try:
            if self._lost is None:
                self._send(parts)
        except LostError:
            log.debug("an answer to %s is lost", self.name)

    # Waiting and executing

    def _mailbox(self) -> _Mailbox:
        mailbox = self._local.mailbox
        if mailbox is None:
            mailbox = self._local.mailbox = _Mailbox()
        return mailbox

    def _thread(self) -> int:
        """The logical thread of the calling thread."""
        number = self._local.logical
        if not number:
            main = not self._accepting and threading.current_thread() is threading.main_thread()
            number = self._local.logical = MAIN_THREAD if main else next(self._thread_ids)
        return number

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
                self._send(self._cancelling(thread))
            if wait.mailbox.inbox:
                self._execute_next(wait.mailbox)
            elif wait.answer is not None:
                return wait.answer
            elif self._lost is not None:
                raise LostError(self._lost)
            elif deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(
                    f"no answer from {self.name} within {timeout:g} s; see its log, and check the network"
                )
            else:
                left = _LOOK_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
                with contextlib.suppress(Empty):
                    wait.mailbox.wake.get(timeout=min(left, _LOOK_SECONDS))

    @staticmethod
    def _cancelling(thread: int) -> Sequence[Buffer]:
        return encode(Frame(Kind.NOTICE, Service.SESSION, thread, 0, {"op": "cancel", "thread": thread}, ()))

    def _leave(self, logical: _Logical, thread: int, mailbox: _Mailbox) -> None:
        """The innermost wait of a logical thread is over. With the lock."""
        if mailbox in logical.waits:
            logical.waits.reverse()
            logical.waits.remove(mailbox)
            logical.waits.reverse()
        if mailbox is logical.runner or mailbox in logical.waits:
            return
        # Only after a wait that was given up can there be requests left.
        while mailbox.inbox:
            self._dispatch(logical, mailbox.inbox.popleft())
        if not logical.waits and logical.runner is None:
            self._logical.pop(thread, None)

    def _execute_next(self, mailbox: _Mailbox) -> None:
        with self._lock:
            if not mailbox.inbox:
                return
            request = mailbox.inbox.popleft()
            logical = self._logical[request.thread]
            before = logical.executor
            logical.executor = threading.get_ident()
            self._local.depth += 1
            self._active += 1
        try:
            self._handle(request)
        finally:
            with self._lock:
                logical.executor = before
                self._exit()

    def _handle(self, request: Request) -> None:
        """Answers, whatever happens."""
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

    def _run(self, number: int, logical: _Logical, mailbox: _Mailbox) -> None:
        """A thread that executes for a logical thread in which nobody waits here."""
        self._local.logical, self._local.mailbox = number, mailbox
        while True:
            try:
                if mailbox.inbox:
                    self._execute_next(mailbox)
                    continue
                mailbox.wake.get(timeout=_IDLE_SECONDS)
                if self._lost is None and logical.runner is mailbox:
                    continue
            except Empty:
                pass
            except KeyboardInterrupt:
                continue
            with self._lock:
                if logical.runner is mailbox:
                    if mailbox.inbox:
                        continue
                    logical.runner = None
                    if not logical.waits:
                        self._logical.pop(number, None)
                return

    # Receiving

    def _receive(self) -> None:
        # What a handler on this thread says is never held back by a pause: the one who paused waits for this thread.
        self._local.depth = 1
        try:
            while True:
                frame = read_frame(self._receiver.read)
                self.counters.bytes_in = self._receiver.bytes_in
                if frame.kind is Kind.REQUEST or frame.kind is Kind.NOTICE:
                    self._take(frame)
                    continue
                with self._lock:
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
            return
        with self._lock:
            logical = self._logical.get(frame.thread)
            if logical is None and len(self._logical) >= _MANY_THREADS:
                self._retire()
            if logical is None and len(self._logical) < _MAX_THREADS:
                logical = self._logical[frame.thread] = _Logical()
            if logical is not None:
                self._dispatch(logical, request)
                return
        request.fail(f"more than {_MAX_THREADS} threads at once", type="TooManyThreads")

    def _retire(self) -> None:
        """Ends the oldest of the threads of ours that have nothing to do. With the lock."""
        for number, logical in self._logical.items():
            runner = logical.runner
            if number == MAIN_THREAD or runner is None or runner.inbox or logical.waits or logical.executor:
                continue
            logical.runner = None
            del self._logical[number]
            runner.wake.put(None)
            return

    def _dispatch(self, logical: _Logical, request: Request) -> None:
        """Gives a request to the thread that waits, or to one that executes. With the lock."""
        if logical.waits:
            mailbox = logical.waits[-1]
        elif logical.runner is not None:
            mailbox = logical.runner
        else:
            mailbox = logical.runner = _Mailbox()
            name = f"remotegpu thread {request.thread} of {self.name}"
            arguments = (request.thread, logical, mailbox)
            threading.Thread(target=self._run, args=arguments, name=name, daemon=True).start()
        mailbox.inbox.append(request)
        mailbox.wake.put(None)

    def _lose(self, why: str, *, ours: bool = False) -> None:
        with self._lock:
            if self._lost is not None:
                return
            why = self._why or why
            if ours:
                self._lost = f"the connection to {self.name} was closed"
            else:
                self._lost = (
                    f"{self.name} is gone ({why}); see its log on the appliance, then start the program again, or let "
                    "it go on elsewhere with `on_disconnect: resume 60s` in remotegpu.yaml"
                )
            reason = self._lost
            self._changed.notify_all()
            mailboxes = {wait.mailbox for wait in self._waiting.values()}
            mailboxes |= {logical.runner for logical in self._logical.values() if logical.runner is not None}
        self._sender.stop()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self.closed.set()
        for mailbox in mailboxes:
            mailbox.wake.put(None)
        if not ours:
            for callback in list(self.on_lost):
                callback(reason)
