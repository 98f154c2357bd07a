"""The logical threads of one end of a connection.

A logical thread is one sequence of calls across both ends: a thread of the program, the acceptor's thread that executes
its requests, and again the program's thread for callbacks. While a thread waits for a reply, it executes requests of
its own logical thread. Therefore callbacks nest, and locks and thread-locals work as in one process.
"""

import ctypes
import itertools
import signal
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from remotegpu_offload.wire.activity import Activity
from remotegpu_offload.wire.errors import OffloadError
from remotegpu_offload.wire.interrupts import Held, nudge
from remotegpu_offload.wire.request import Request

MAIN_THREAD: Final = 1
MAX_THREADS: Final = 1024
# How long an executing thread waits for more requests of its logical thread, in seconds.
_IDLE_SECONDS: Final = 5.0
# From this number on, an idle thread ends when a new one is needed: a program may start a thread for each call.
_MANY_THREADS: Final = 256


class Mailbox:
    """The request queue of one thread of this process, which the receiving thread fills, and an event to wake it."""

    __slots__ = ("inbox", "wake")

    def __init__(self) -> None:
        self.inbox: deque[Request] = deque()
        # Only signals a change. The thread then checks all conditions, so it misses no change.
        self.wake: SimpleQueue[None] = SimpleQueue()


class _Logical:
    """A logical thread: the threads that wait in it (innermost last), and the thread that executes if none waits."""

    __slots__ = ("executor", "runner", "waits")

    def __init__(self) -> None:
        self.waits: list[Mailbox] = []
        self.runner: Mailbox | None = None
        # The id of the thread in this process that executes a request; 0 if none does.
        self.executor = 0


class _Local(threading.local):
    """The state of each thread of this process."""

    logical: int = 0
    mailbox: Mailbox | None = None


class Threads:
    """Assigns each request to the thread of this process that executes for its logical thread.

    Args:
        name: the name of the other side, for users.
        accepting: as for `Peer`.
        activity: counts executed requests.
        handle: executes a request; never raises.
    """

    def __init__(self, name: str, accepting: bool, activity: Activity[Any], handle: Callable[[Request], None]) -> None:
        self._name = name
        self._accepting = accepting
        self._activity = activity
        self._handle = handle
        self._numbers = itertools.count(2 if accepting else 3, 2)
        self._logical: dict[int, _Logical] = {}
        self._local = _Local()

    def mailbox(self) -> Mailbox:
        """Returns the calling thread's mailbox; creates it at the first call."""
        mailbox = self._local.mailbox
        if mailbox is None:
            mailbox = self._local.mailbox = Mailbox()
        return mailbox

    def number(self) -> int:
        """Returns the number of the calling thread's logical thread; chooses one at the first call."""
        number = self._local.logical
        if not number:
            main = not self._accepting and threading.current_thread() is threading.main_thread()
            number = self._local.logical = MAIN_THREAD if main else next(self._numbers)
        return number

    def begin_wait(self, number: int, mailbox: Mailbox) -> None:
        """Records that the calling thread waits in a logical thread, and may execute its requests.

        The caller holds the lock.
        """
        logical = self._logical.get(number) or self._logical.setdefault(number, _Logical())
        logical.waits.append(mailbox)

    def end_wait(self, number: int, mailbox: Mailbox) -> None:
        """Ends the innermost wait of a logical thread. The caller holds the lock."""
        logical = self._logical[number]
        logical.waits.reverse()
        logical.waits.remove(mailbox)
        logical.waits.reverse()
        if mailbox is logical.runner or mailbox in logical.waits:
            return
        # Requests can only be left if the wait was interrupted.
        while mailbox.inbox:
            self._dispatch(logical, mailbox.inbox.popleft())
        if not logical.waits and logical.runner is None:
            self._logical.pop(number, None)

    def take_main(self) -> Mailbox:
        """Makes the calling thread the one that executes logical thread 1.

        Raises:
            OffloadError: logical thread 1 has a thread already.
        """
        mailbox = self.mailbox()
        with self._activity.lock:
            logical = self._logical.setdefault(MAIN_THREAD, _Logical())
            if logical.runner is not None:
                raise OffloadError("logical thread 1 has a thread already: call run_main before start")
            logical.runner = mailbox
        self._local.logical = MAIN_THREAD
        return mailbox

    def run_main(self, mailbox: Mailbox, closed: threading.Event) -> None:
        """Executes the requests of logical thread 1 until the connection is closed. Blocks."""
        with Held() as held:
            while not closed.is_set() or mailbox.inbox:
                # Ctrl-C was meant for a request that has just ended.
                held.forget()
                if mailbox.inbox:
                    self.execute_next(mailbox)
                else:
                    mailbox.wake.get()
            held.forget()

    def take(self, request: Request) -> None:
        """Assigns a request to a thread. Fails the request if there are too many threads."""
        with self._activity.lock:
            logical = self._logical.get(request.thread)
            if logical is None and len(self._logical) >= _MANY_THREADS:
                self._retire()
            if logical is None and len(self._logical) < MAX_THREADS:
                logical = self._logical[request.thread] = _Logical()
            if logical is not None:
                self._dispatch(logical, request)
                return
        request.fail(f"more than {MAX_THREADS} threads at once", type="TooManyThreads")

    def execute_next(self, mailbox: Mailbox) -> None:
        """Executes the oldest request in the mailbox of the calling thread."""
        activity = self._activity
        with activity.lock:
            if not mailbox.inbox:
                return
            request = mailbox.inbox.popleft()
            logical = self._logical[request.thread]
            before = logical.executor
            logical.executor = threading.get_ident()
            activity.begin()
        try:
            self._handle(request)
        finally:
            with activity.lock:
                logical.executor = before
                activity.end()

    def interrupt(self, number: int) -> bool:
        """Interrupts a logical thread: raises KeyboardInterrupt in its running request, or fails its waiting requests.

        Returns False if there are none.
        """
        waiting: list[Request] = []
        with self._activity.lock:
            logical = self._logical.get(number)
            if logical is None:
                return False
            if logical.executor:
                _raise_in(logical)
                return True
            if logical.runner is not None:
                waiting.extend(logical.runner.inbox)
                logical.runner.inbox.clear()
        for request in waiting:
            request.fail("it was interrupted before it began", type="KeyboardInterrupt")
        return bool(waiting)

    def mailboxes(self) -> set[Mailbox]:
        """Returns the mailboxes of all threads that wait for an answer or a request. The caller holds the lock."""
        return {each for logical in self._logical.values() for each in (*logical.waits, logical.runner) if each}

    def _dispatch(self, logical: _Logical, request: Request) -> None:
        """Gives a request to the innermost waiting thread, or else to the executing thread.

        Starts an executing thread if there is none. The caller holds the lock.
        """
        if logical.waits:
            mailbox = logical.waits[-1]
        elif logical.runner is not None:
            mailbox = logical.runner
        else:
            mailbox = logical.runner = Mailbox()
            name = f"remotegpu thread {request.thread} of {self._name}"
            arguments = (request.thread, logical, mailbox)
            threading.Thread(target=self._run, args=arguments, name=name, daemon=True).start()
        mailbox.inbox.append(request)
        mailbox.wake.put(None)

    def _run(self, number: int, logical: _Logical, mailbox: Mailbox) -> None:
        """Runs a thread that executes a logical thread in which no thread of this process waits."""
        self._local.logical, self._local.mailbox = number, mailbox
        while True:
            try:
                if mailbox.inbox:
                    self.execute_next(mailbox)
                    continue
                mailbox.wake.get(timeout=_IDLE_SECONDS)
                if not self._activity.lost and logical.runner is mailbox:
                    continue
            except Empty:
                pass
            except KeyboardInterrupt:
                continue
            with self._activity.lock:
                if logical.runner is mailbox:
                    if mailbox.inbox:
                        continue
                    logical.runner = None
                    if not logical.waits:
                        self._logical.pop(number, None)
                return

    def _retire(self) -> None:
        """Ends the oldest idle thread that this class has started. The caller holds the lock."""
        for number, logical in self._logical.items():
            runner = logical.runner
            if number == MAIN_THREAD or runner is None or runner.inbox or logical.waits or logical.executor:
                continue
            logical.runner = None
            del self._logical[number]
            runner.wake.put(None)
            return


def _raise_in(logical: _Logical) -> None:
    """Raises KeyboardInterrupt in the executing thread. The caller holds the lock."""
    if logical.executor == threading.main_thread().ident:
        signal.pthread_kill(logical.executor, signal.SIGINT)
        nudge()
    else:
        kind = ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(logical.executor), kind)
    for mailbox in (*logical.waits, logical.runner):
        if mailbox is not None:
            mailbox.wake.put(None)
