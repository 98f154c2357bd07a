"""Moves a session to another acceptor, on request or after the acceptor is lost."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from remotegpu_offload.client.places import Wish
from remotegpu_offload.wire import LostError, OffloadError, Peer

if TYPE_CHECKING:
    from remotegpu_offload.client.session import Session

# The pause between two attempts to reach another acceptor.
_PAUSE_SECONDS: Final = 0.25
# How long calls are paused until the running ones end. After a timeout the program runs this long before a retry.
_CALM_SECONDS: Final = 0.2


def switch(session: "Session", wanted: Wish, timeout: float | None = None) -> None:
    """Implements `Session.switch`: saves the state of the old acceptor and loads it into a new one."""
    with session.moving:
        old = session.peer
        # Connects first, so that an unavailable acceptor disturbs nothing.
        opened = session.connect(wanted)
        try:
            with _still(session, old, timeout):
                states = _save(session, old)
                _load(session, opened[0], states)
                session.take(opened)
                old.activity.resume(opened[0])
        except BaseException:
            opened[0].close()
            raise
        session.states = states if session.keeps else {}
        session.wish = wanted
        old.close()


def snapshot(session: "Session") -> None:
    """Implements `Session.snapshot`: saves the acceptor's state in the session."""
    with session.moving:
        peer = session.peer
        with _still(session, peer, None):
            session.states = _save(session, peer)


def resume(session: "Session", lost: Peer) -> None:
    """Continues on another acceptor with the saved state of the lost one; on return the session has its new peer.

    Raises:
        LostError: the configuration does not allow it, a part has no saved state, or no acceptor was found in time.
    """
    with session.moving:
        if session.moved_from(lost):
            return
        reason = lost.activity.lost
        seconds = session.config.session.resume_seconds
        if seconds is None:
            raise LostError(reason)
        missing = [name for name in session.parts if name not in session.states]
        if missing:
            raise LostError(
                f"{reason}; it cannot be resumed: nothing was kept of {', '.join(missing)} (set `snapshots: 30s` under "
                "`session` in remotegpu.yaml)"
            )
        deadline = time.monotonic() + seconds
        while True:
            try:
                opened = session.connect(session.wish)
                break
            except (OffloadError, TimeoutError) as error:
                if time.monotonic() + _PAUSE_SECONDS > deadline:
                    raise LostError(f"{reason}; within {seconds} s there was no other: {error}") from None
                time.sleep(_PAUSE_SECONDS)
        try:
            _load(session, opened[0], session.states)
        except BaseException:
            opened[0].close()
            raise
        session.take(opened)
        lost.activity.resume(opened[0])
        lost.close()


class Snapshots:
    """Takes periodic snapshots of the acceptor's state, if the configuration asks for them."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._ended = threading.Event()
        self._seconds = session.config.session.snapshot_seconds
        if self._seconds is not None:
            threading.Thread(target=self._run, name="remotegpu snapshots", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            # Errors are ignored here: a thread that uses the acceptor gets LostError itself.
            with contextlib.suppress(OffloadError):
                self._session.snapshot()


@contextlib.contextmanager
def _still(session: "Session", peer: Peer, timeout: float | None) -> Iterator[None]:
    """Pauses all threads except the calling one. Raises TimeoutError.

    A running call may need a part that is held here. Therefore the parts are released and held again until all calls
    have ended.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _CALM_SECONDS if deadline is None else min(_CALM_SECONDS, deadline - time.monotonic())
        with contextlib.ExitStack() as stack:
            for part in list(session.parts.values()):
                holding = getattr(part, "holding", None)
                if holding is not None:
                    stack.enter_context(holding())
            try:
                peer.activity.pause(max(0.0, left))
            except TimeoutError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
            else:
                try:
                    yield
                finally:
                    peer.activity.resume()
                return
        time.sleep(_CALM_SECONDS)


def _save(session: "Session", peer: Peer) -> dict[str, object]:
    return {name: part.save(peer) for name, part in session.parts.items()}


def _load(session: "Session", peer: Peer, states: dict[str, object]) -> None:
    for name, part in session.parts.items():
        part.load(peer, states[name])
