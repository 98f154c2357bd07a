"""The way from the facade to the session: opened when the program first needs the device, never in a child that was
forked afterwards."""

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
        # The process that opened it.
        self.pid = 0
        self.open: Callable[[], device.Source] | None = None
        # Set once all headers in `waiting` were sent: a caller that finds it set needs no lock.
        self.remote: device.Remote | None = None
        # The thread that opens the session holds it. Reentrant, for a signal handler that uses the device in the
        # meantime.
        self.opening = threading.RLock()
        self.waiting: list[dict[str, Any]] = []
        self.ended: deque[tuple[str, int]] = deque()


_link = _Link()


def configure(opener: Callable[[], device.Source]) -> None:
    """Sets how this process gets its session. Called once, before anything else here."""
    _link.open = opener


def forked() -> bool:
    """Whether this process is a child that was forked from one whose remote device was open."""
    return _link.remote is not None and os.getpid() != _link.pid


def is_open() -> bool:
    return _link.remote is not None


def remote() -> device.Remote:
    """Returns the device; opens the session at first.

    Raises OffloadError in a forked child, and whatever opening a session raises.
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
        # Also if the connection was lost in the meantime: there is no second device, and its users get the reason.
        _link.pid, _link.remote = os.getpid(), made
    return made


def _after_fork() -> None:
    # The thread that holds the lock does not exist here.
    _link.opening = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def peer() -> Peer:
    """Returns the session's current connection to the acceptor."""
    return remote().source.peer


def ask(header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> Message:
    """Requests an answer of the acceptor, after all operations so far: one round trip.

    Raises what an operation raised there, LostError when the acceptor is gone.
    """
    stream = remote().stream
    rest = {**header, **_ended()}
    return checked(stream.ask(rest.pop("op"), rest, buffers))


def tell(header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
    """Requests something of the acceptor, after all operations so far, without waiting."""
    _tell(remote(), header, buffers)


def later(header: dict[str, Any]) -> None:
    """Does the same as `tell`, but does not open the session: the request is sent when it opens. Nothing in a forked
    child."""
    if forked():
        return
    if _link.remote is None:
        with _link.opening:
            if _link.remote is None:
                _link.waiting.append(header)
                return
    tell(header)


def forget(kind: str, number: int) -> None:
    """Notes that something with an id has ended here, for the next message. Safe in destructors, which may run in the
    middle of sending."""
    _link.ended.append((kind, number))


def _tell(to: device.Remote, header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
    rest = {**header, **_ended()}
    to.stream.tell(rest.pop("op"), rest, buffers)


def _ended() -> dict[str, Any]:
    ended = []
    # Destructors and other threads add in the meantime: each entry is taken once.
    while _link.ended:
        with contextlib.suppress(IndexError):
            ended.append(_link.ended.popleft())
    return {"ended": ended} if ended else {}
