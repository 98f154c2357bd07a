"""Delays signals in the main thread until a step is complete.

Ctrl-C may raise KeyboardInterrupt at any point. A signal handler of the program may also print or compute, which uses
the very connection to which the interrupted thread is about to write.
"""

import importlib
import signal
import threading
import time
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final

# The C functions: those of `signal` convert numbers to enums, which takes ten times as long.
_signal: Final[Any] = importlib.import_module("_signal")
_SIGINT: Final = int(signal.SIGINT)
# The signals that programs usually handle.
_NUMBERS: Final = (
    _SIGINT,
    *map(int, (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)),
)
defaults: Final[list[Any]] = [signal.default_int_handler]
"""The handlers of Ctrl-C that only raise KeyboardInterrupt."""

# After this many Ctrl-C, the user wants to stop immediately, even if the connection is left in an undefined state.
_ENOUGH: Final = 3


# A signal that no program uses. Its only effect is to interrupt a system call.
_NUDGE: Final = signal.SIGRTMAX
_NUDGES_SECONDS: Final = (0.01, 0.1, 1.0)


def take_nudges() -> None:
    """Installs the handler of nudges, if this is the main thread. Call it once in a process that calls `nudge`."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(_NUDGE, _nothing)


def nudge() -> None:
    """Makes the main thread notice a signal that this thread has just sent to it.

    The main thread releases the interpreter lock before it waits in a system call. This wakes the calling thread, which
    may send the signal before that system call has begun. Then the signal is recorded, but the system call still waits.
    A second signal ends the wait.
    """
    if signal.getsignal(_NUDGE) is _nothing:
        threading.Thread(target=_nudge, name="remotegpu signal", daemon=True).start()


def _nudge() -> None:
    main = threading.main_thread().ident
    for seconds in _NUDGES_SECONDS:
        time.sleep(seconds)
        if main is not None:
            signal.pthread_kill(main, _NUDGE)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    return


class Held:
    """Records signals that have Python handlers while it is entered, and wakes the thread that waits on `wake`.

    At the end, raises KeyboardInterrupt for Ctrl-C, and runs the program's own handlers. Does nothing outside of the
    main thread, because Python runs handlers only there.
    """

    __slots__ = ("_before", "_noted", "_wake", "count")

    def __init__(self, wake: "SimpleQueue[None] | None" = None) -> None:
        # The number of Ctrl-C that the program does not handle itself.
        self.count = 0
        self._wake = wake
        self._before: dict[int, Any] = {}
        self._noted: list[int] = []

    def __enter__(self) -> "Held":
        if threading.get_ident() == threading.main_thread().ident:
            for number in _NUMBERS:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    _signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        self._restore()
        outer: Any = self._before.get(_SIGINT)
        if self._noted:
            self._pass_on()
        if self.count:
            if _is_ours(outer):
                # The outer Held raises KeyboardInterrupt later.
                outer.__self__.count += self.count
            else:
                raise KeyboardInterrupt

    def forget(self) -> None:
        """Forgets counted Ctrl-C: the interrupted request has ended, or the caller raises KeyboardInterrupt itself."""
        self.count = 0

    def deliver(self) -> None:
        """Runs the program's own handlers of the recorded signals now."""
        if self._noted:
            with Allowed():
                pass

    def root(self, number: int) -> "Held":
        """Returns the outermost Held, which stores the program's handler."""
        handler = self._before[number]
        return handler.__self__.root(number) if _is_ours(handler) else self

    def handler(self, number: int) -> Any:
        """Returns the program's handler of a signal."""
        return self.root(number)._before[number]

    def replace(self, number: int, handler: Any) -> None:
        """Records a new handler of the program."""
        self.root(number)._before[number] = handler

    def take(self, number: int) -> bool:
        """Returns whether this or an outer Held has recorded the signal, and removes the record."""
        handler = self._before[number]
        noted = bool(_is_ours(handler) and handler.__self__.take(number))
        if number in self._noted:
            self._noted.remove(number)
            noted = True
        return noted

    def _restore(self) -> None:
        try:
            for number, handler in self._before.items():
                _signal.signal(number, handler)
        except BaseException:
            # A handler that was already restored has raised the exception.
            self._restore()
            raise

    def _pass_on(self) -> None:
        """Passes recorded signals to an outer Held, or to the program's handlers.

        Each handler may raise an exception.
        """
        number = self._noted.pop(0)
        try:
            handler = self._before[number]
            if _is_ours(handler):
                handler.__self__._noted.append(number)
            else:
                _signal.raise_signal(number)
        finally:
            if self._noted:
                self._pass_on()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == _SIGINT and self.handler(number) in defaults:
            self.count += 1
        elif number not in self._noted:
            self._noted.append(number)
        if self._wake is not None:
            self._wake.put(None)
        if self.count >= _ENOUGH:
            self.count = 0
            raise KeyboardInterrupt


class Allowed:
    """Delivers signals at once while entered, including recorded ones: for the program's own code inside a Held."""

    __slots__ = ("_held",)

    def __enter__(self) -> None:
        self._held: dict[int, Any] = {}
        if threading.get_ident() != threading.main_thread().ident:
            return
        noted: list[int] = []
        try:
            for number in _NUMBERS:
                handler = _signal.getsignal(number)
                if _is_ours(handler):
                    self._held[number] = handler
                    _signal.signal(number, handler.__self__.handler(number))
                    if handler.__self__.take(number):
                        noted.append(number)
            while noted:
                _signal.raise_signal(noted.pop(0))
        except BaseException:
            self.__exit__()
            for number in noted:
                _signal.raise_signal(number)
            raise

    def __exit__(self, *_: object) -> None:
        for number, handler in self._held.items():
            handler.__self__.replace(number, _signal.signal(number, handler))


def pending() -> bool:
    """Returns whether a Ctrl-C of the calling thread is held back."""
    if threading.get_ident() != threading.main_thread().ident:
        return False
    handler = _signal.getsignal(_SIGINT)
    return _is_ours(handler) and handler.__self__.count > 0


def _is_ours(handler: object) -> bool:
    return isinstance(getattr(handler, "__self__", None), Held)
