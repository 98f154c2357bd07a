"""Ctrl-C where it must not come in between: held back in the main thread until what goes on is whole again."""

import importlib
import signal
import threading
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final

# The functions of `signal` themselves: around them that module makes enums of numbers, which takes ten times as long.
_signal: Final[Any] = importlib.import_module("_signal")
_SIGINT: Final = int(signal.SIGINT)
_default_handler: Final = signal.default_int_handler

# Somebody who presses it so often wants out, whatever is left behind.
_ENOUGH: Final = 3


class Held:
    """Inside `with`, Ctrl-C only counts and wakes whoever waits on `wake`; KeyboardInterrupt is raised at the end.

    Does nothing in other threads than the main one, and where the program has its own handler.
    """

    __slots__ = ("_active", "_outer", "_wake", "count")

    def __init__(self, wake: "SimpleQueue[None] | None" = None) -> None:
        self.count = 0
        self._wake = wake
        self._active = False
        self._outer: Any = None

    def __enter__(self) -> "Held":
        if threading.get_ident() == threading.main_thread().ident:
            handler = _signal.getsignal(_SIGINT)
            if handler is _default_handler or _is_ours(handler):
                self._outer = handler
                self._active = True
                _signal.signal(_SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._active:
            return
        _signal.signal(_SIGINT, self._outer)
        if self.count and not self.forgiven():
            raise KeyboardInterrupt

    def forgiven(self) -> bool:
        """Whether it is counted further out, where it is raised later."""
        if _is_ours(self._outer):
            self._outer.__self__.count += self.count
            return True
        return False

    def forget(self) -> None:
        """What was counted was meant for something that has ended, or is raised by the caller."""
        self.count = 0

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self._wake is not None:
            self._wake.put(None)
        if self.count >= _ENOUGH:
            self.count = 0
            raise KeyboardInterrupt


class Allowed:
    """Inside `with`, Ctrl-C raises at once again: for the program's own code that is called in between."""

    __slots__ = ("_held",)

    def __enter__(self) -> None:
        self._held: Any = None
        if threading.get_ident() == threading.main_thread().ident:
            handler = _signal.getsignal(_SIGINT)
            if _is_ours(handler):
                self._held = handler
                _signal.signal(_SIGINT, _default_handler)

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            _signal.signal(_SIGINT, self._held)


def pending() -> bool:
    """Whether the calling thread has a Ctrl-C held back."""
    if threading.get_ident() != threading.main_thread().ident:
        return False
    handler = _signal.getsignal(_SIGINT)
    return _is_ours(handler) and handler.__self__.count > 0


def _is_ours(handler: object) -> bool:
    return isinstance(getattr(handler, "__self__", None), Held)
