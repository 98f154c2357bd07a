"""The way from the facade to the session: opened when the program first needs the device, never in a child that was
forked afterwards.
"""

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
        # Of the process that opened it.
        self.pid = 0
        self.open: Callable[[], device.Source] | None = None
        # Set once all that `waiting` has was told: who finds it need not look further.
        self.remote: device.Remote | None = None
        # The thread that opens the session holds it. Entered again by a signal handler that uses the device meanwhile.
        self.opening = threading.RLock()
        self.waiting: list[dict[str, Any]] = []
        self.ended: deque[tuple[str, int]] = deque()


_link = _Link()


def configure(opener: Callable[[], device.Source]) -> None:
    """Say how this process gets its session. Called once, before anything else here."""
    _link.open = opener


def forked() -> bool:
    """Whether this process is a child that was forked from one whose remote device was open."""
    return _link.remote is not None and os.getpid() != _link.pid


def is_open() -> bool:
    return _link.remote is not None


def remote() -> device.Remote:
    """The device; opens the session at first.

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
        # Also where it was lost meanwhile: there is no second one, and its users get the reason.
        _link.pid, _link.remote = os.getpid(), made
    return made


def _after_fork() -> None:
    # The thread that holds it does not exist here.
    _link.opening = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def peer() -> Peer:
    """The connection to the acceptor that the session has now."""
    return remote().source.peer


def ask(header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> Message:
    """Have the acceptor answer, after all operations so far: one round trip.

    Raises what an operation raised there, LostError when the acceptor is gone.
    """
    stream = remote().stream
    rest = {**header, **_ended()}
    return checked(stream.ask(rest.pop("op"), rest, buffers))


def tell(header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
    """Have the acceptor do something after all operations so far; nobody waits."""
    _tell(remote(), header, buffers)


def later(header: dict[str, Any]) -> None:
    """As `tell`, but does not open the session: it is told when that opens. Nothing in a forked child."""
    if forked():
        return
    if _link.remote is None:
        with _link.opening:
            if _link.remote is None:
                _link.waiting.append(header)
                return
    tell(header)


def forget(kind: str, number: int) -> None:
    """Something with an id has ended here. The next message tells it; safe in destructors, which may run in the middle
    of sending.
    """
    _link.ended.append((kind, number))


def _tell(to: device.Remote, header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
    rest = {**header, **_ended()}
    to.stream.tell(rest.pop("op"), rest, buffers)


def _ended() -> dict[str, Any]:
    ended = []
    # Destructors and other threads add meanwhile: each is taken by one of us.
    while _link.ended:
        with contextlib.suppress(IndexError):
            ended.append(_link.ended.popleft())
    return {"ended": ended} if ended else {}
