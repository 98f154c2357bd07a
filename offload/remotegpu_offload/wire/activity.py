"""Tracks the running requests of a connection, and whether new ones may begin.

A connection can be paused, replaced or lost.
"""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from remotegpu_offload.wire.errors import LostError, OffloadError

Successor = TypeVar("Successor")


class _Local(threading.local):
    """The state of each thread. `depth`: nested requests for which it waits or that it executes."""

    depth: int = 0


class Activity(Generic[Successor]):
    """Counts the running requests of a connection.

    Args:
        name: the name of the other side, for users.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.lost = ""
        """Why the connection is closed, for the LostError; empty while it is not."""
        self.lock = threading.Lock()
        """Guards all that a connection's threads share."""
        self._changed = threading.Condition(self.lock)
        self._local = _Local()
        self._active = 0
        self._paused_by = 0
        self._successor: Successor | None = None

    def pause(self, timeout: float | None = None) -> None:
        """Waits until no request runs in either direction. Then only the calling thread may begin requests.

        Raises:
            OffloadError: the calling thread is itself in a request.
            TimeoutError: running requests took longer than `timeout` seconds; nothing is paused.
        """
        if self._local.depth:
            raise OffloadError("a session cannot move while it executes a call of this thread: move it after the call")
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            self._wait_until(lambda: not self._paused_by, deadline)
            self._paused_by = threading.get_ident()
            try:
                self._wait_until(lambda: not self._active, deadline)
            except BaseException:
                self._paused_by = 0
                self._changed.notify_all()
                raise

    def resume(self, successor: Successor | None = None) -> None:
        """Ends the pause. With a `successor`, all threads continue on that connection instead of this one."""
        with self.lock:
            self._paused_by = 0
            self._successor = successor or self._successor
            self._changed.notify_all()

    def enter(self) -> Successor | None:
        """Begins a request; returns the connection that must execute it instead, or None. The caller holds the lock.

        Raises:
            LostError: the connection is closed.
        """
        depth = self._local.depth
        if self._paused_by and not depth and self._paused_by != threading.get_ident():
            self._changed.wait_for(lambda: not self._paused_by or self.lost)
        if self._successor is not None and not depth:
            return self._successor
        if self.lost:
            raise LostError(self.lost)
        self.begin()
        return None

    def begin(self) -> None:
        """Begins an activity for which `pause` waits, but which a pause does not delay. The caller holds the lock."""
        self._local.depth += 1
        self._active += 1

    def end(self) -> None:
        """Ends the activity that `enter` or `begin` began. The caller holds the lock."""
        self._local.depth -= 1
        self._active -= 1
        if not self._active and self._paused_by:
            self._changed.notify_all()

    def lose(self, reason: str) -> None:
        """Marks the connection as lost. The caller holds the lock."""
        self.lost = reason
        self._changed.notify_all()

    def never_pause_this_thread(self) -> None:
        """Exempts the calling thread from pauses, because the pausing thread waits for it."""
        self._local.depth = 1

    def abandon(self, reason: str) -> None:
        """Marks the connection as lost in a forked child. Replaces the lock, which a thread of the parent may hold."""
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._paused_by = 0
        self.lost = reason

    def _wait_until(self, condition: Callable[[], bool], deadline: float | None) -> None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._changed.wait_for(condition, left):
            raise TimeoutError(f"{self._name} is still busy with calls; try again when they have ended")
