"""The way from the facade to the session: opened when the program first needs the device, never in a forked child."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from remotegpu.offload.torch import device, state
from remotegpu.offload.torch.errors import checked
from remotegpu.offload.wire.errors import OffloadError
from remotegpu.offload.wire.frames import Buffer, Message
from remotegpu.offload.wire.peer import Peer

_CHILD: Final = (
    "this process was forked from one that has a remote device, and has none itself, as with CUDA. Keep its tensors "
    "on the CPU, or start it with multiprocessing's method 'spawn'"
)


class _Link:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.open: Callable[[], device.Source] | None = None
        # Set once all that `waiting` has was told: who finds it need not look further.
        self.remote: device.Remote | None = None
        # Whoever opens the session has it. Entered again by a signal handler that uses the device meanwhile.
        self.opening = threading.RLock()
        self.waiting: list[dict[str, Any]] = []
        self.ended: deque[tuple[str, int]] = deque()


_link = _Link()


def configure(opener: Callable[[], device.Source]) -> None:
    """Say how this process gets its session. Called once, before anything else here."""
    _link.open = opener
    _link.pid = os.getpid()


def forked() -> bool:
    """Whether this process is a child of the one that may have a remote device."""
    return os.getpid() != _link.pid


def is_open() -> bool:
    return _link.remote is not None


def remote() -> device.Remote:
    """The device; opens the session at first.

    Raises OffloadError in a forked child, and whatever opening a session raises.
    """
    if forked():
        raise OffloadError(_CHILD)
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
        # Also where it was lost meanwhile: there is no second one, and whoever uses it hears why.
        _link.remote = made
    return made


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
