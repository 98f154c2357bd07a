"""Connects replaced functions of torch to the session: opens it at the program's first use, never in a forked child."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from remotegpu_offload.torch import device
from remotegpu_offload.torch.errors import checked
from remotegpu_offload.torch.stream import state
from remotegpu_offload.torch.stream.stream import FORKED
from remotegpu_offload.wire.errors import OffloadError
from remotegpu_offload.wire.frames import Buffer, Message
from remotegpu_offload.wire.peer import Peer


class _Link:
    def __init__(self) -> None:
        # The process id of the process that opened the session.
        self.pid = 0
        self.open: Callable[[], device.Source] | None = None
        # Set after all headers in `waiting` were sent, so that a caller that finds it set needs no lock.
        self.remote: device.Remote | None = None
        # Held by the thread that opens the session. Reentrant, because a signal handler may use the device in the
        # meantime.
        self.opening = threading.RLock()
        self.waiting: list[dict[str, Any]] = []
        self.ended: deque[tuple[str, int]] = deque()


_link = _Link()


def configure(opener: Callable[[], device.Source]) -> None:
    """Sets the function that opens this process's session. Call it once, before any other function of this module."""
    _link.open = opener


def forked() -> bool:
    """Returns whether this process was forked from one whose remote device was open."""
    return _link.remote is not None and os.getpid() != _link.pid


def is_open() -> bool:
    return _link.remote is not None


def remote() -> device.Remote:
    """Returns the device; opens the session at the first call.

    Raises OffloadError in a forked child, and the errors of opening a session.
    """
    if forked():
        raise OffloadError(FORKED)
    if _link.remote is None:
        with _link.opening:
            if _link.remote is None:
                return _opened()
    return _link.remote


def _opened() -> device.Remote:
    if _link.open is None:
        raise OffloadError("there is no remote device: start the program with `remotegpu offload run`")
    made = device.activate(_link.open())
    try:
        state.join(made)
        for header in _link.waiting:
            _tell(made, header)
        _link.waiting.clear()
    finally:
        # Also after a lost connection: a process has only one device, and its later uses report the reason.
        _link.pid, _link.remote = os.getpid(), made
    return made


def _after_fork() -> None:
    # The thread that holds the lock does not exist in the child.
    _link.opening = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def peer() -> Peer:
    """Returns the session's current connection to the acceptor."""
    return remote().source.peer


def ask(header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> Message:
    """Sends a request in order after all operations so far, and waits for the answer: one round trip.

    Raises the errors of operations, and LostError if the acceptor is lost.
    """
    stream = remote().stream
    rest = {**header, **_ended()}
    return checked(stream.ask(rest.pop("op"), rest, buffers))


def tell(header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
    """Sends a request in order after all operations so far, without waiting."""
    _tell(remote(), header, buffers)


def later(header: dict[str, Any]) -> None:
    """Sends a request like `tell`, but without opening the session: it is sent when the session opens.

    Does nothing in a forked child.
    """
    if forked():
        return
    if _link.remote is None:
        with _link.opening:
            if _link.remote is None:
                _link.waiting.append(header)
                return
    tell(header)


def forget(kind: str, number: int) -> None:
    """Records that an object with an id has ended here, for the next message.

    Safe in destructors, which may run while a message is sent.
    """
    _link.ended.append((kind, number))


def _tell(to: device.Remote, header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
    rest = {**header, **_ended()}
    to.stream.tell(rest.pop("op"), rest, buffers)


def _ended() -> dict[str, Any]:
    ended = []
    # Destructors and other threads may add entries in the meantime; each entry is taken once.
    while _link.ended:
        with contextlib.suppress(IndexError):
            ended.append(_link.ended.popleft())
    return {"ended": ended} if ended else {}
