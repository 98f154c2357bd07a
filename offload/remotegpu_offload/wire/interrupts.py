"""Holds signals back in the main thread until a step is complete.

Ctrl-C raises KeyboardInterrupt anywhere, and a handler of the program's own may print or compute, which uses the very
connection that its thread is about to write to.
"""

import importlib
import signal
import threading
import time
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final

# The functions below the module `signal`: that module makes enums of numbers, which takes ten times as long.
_signal: Final[Any] = importlib.import_module("_signal")
_SIGINT: Final = int(signal.SIGINT)
# Those that programs handle.
_NUMBERS: Final = (
    _SIGINT,
    *map(int, (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)),
)
defaults: Final[list[Any]] = [signal.default_int_handler]
"""The handlers of Ctrl-C that only raise KeyboardInterrupt."""

# A person who presses it so often wants to stop, whatever is left behind.
_ENOUGH: Final = 3


# No program uses it, and it has no meaning: it only interrupts a system call.
_NUDGE: Final = signal.SIGRTMAX
_NUDGES_SECONDS: Final = (0.01, 0.1, 1.0)


def take_nudges() -> None:
    """Installs the handler of nudges, if this is the main thread. Once in a process in which `nudge` is called."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(_NUDGE, _nothing)


def nudge() -> None:
    """Makes the main thread notice a signal that this thread has just sent to it.

    The main thread releases the interpreter lock before it waits in a system call. That wakes this thread, which may
    send the signal before that call has begun: then the signal is recorded, and the call still waits. Another
    signal ends the wait.
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
    """Notes signals that Python code handles, inside `with`, and wakes the thread that waits on `wake`.

    At the end KeyboardInterrupt is raised for Ctrl-C, and the program's own handlers run. Does nothing in other threads
    than the main one, where no handler runs.
    """

    __slots__ = ("_before", "_noted", "_wake", "count")

    def __init__(self, wake: "SimpleQueue[None] | None" = None) -> None:
        # Counts Ctrl-C, where the program does not handle it.
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
                # It is raised later.
                outer.__self__.count += self.count
            else:
                raise KeyboardInterrupt

    def forget(self) -> None:
        """Forgets the Ctrl-C that was counted: it was meant for something that has ended, or the caller raises
        KeyboardInterrupt."""
        self.count = 0

    def deliver(self) -> None:
        """Runs the program's own handlers of the signals that were noted: now is as good as later."""
        if self._noted:
            with Allowed():
                pass

    def root(self, number: int) -> "Held":
        """Returns the outermost Held, which has the program's handler."""
        handler = self._before[number]
        return handler.__self__.root(number) if _is_ours(handler) else self

    def handler(self, number: int) -> Any:
        """Returns the program's handler."""
        return self.root(number)._before[number]

    def replace(self, number: int, handler: Any) -> None:
        """Records another handler of the program."""
        self.root(number)._before[number] = handler

    def take(self, number: int) -> bool:
        """Whether this or an outer Held has noted the signal; it no longer is noted."""
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
            # A handler that was in place again has raised it.
            self._restore()
            raise

    def _pass_on(self) -> None:
        """Passes noted signals to an outer Held, or to the program's handlers, each of which may raise something."""
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
    """Handles signals at once again, inside `with`, first those noted before: for the program's own code."""

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
    """Whether the calling thread has a Ctrl-C held back."""
    if threading.get_ident() != threading.main_thread().ident:
        return False
    handler = _signal.getsignal(_SIGINT)
    return _is_ours(handler) and handler.__self__.count > 0


def _is_ours(handler: object) -> bool:
    return isinstance(getattr(handler, "__self__", None), Held)
