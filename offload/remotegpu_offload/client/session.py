"""A program's session with its acceptor: one for each process, opened at the first use."""

import atexit
import contextlib
import json
import os
import secrets
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from remotegpu.api.names import STATS_ENV
from remotegpu_offload.acceptor import versions
from remotegpu_offload.acceptor.environment import Environment
from remotegpu_offload.client import connect, control, moving
from remotegpu_offload.client.places import Connector, Wish, moved, wish
from remotegpu_offload.client.services import ClientService, process, services
from remotegpu_offload.config.load import load
from remotegpu_offload.config.model import Config
from remotegpu_offload.wire import Handler, Message, OffloadError, Peer, RemoteFailure, Request, Service

_GREETING_SECONDS: Final = 60.0
_BYE_SECONDS: Final = 5.0


class Part(Protocol):
    """The client's half of a component that has state in the acceptor, and that moves with the session.

    `save` and `load` are called on one thread while all other threads are paused. If a thread can pause between
    reserving a number and sending it, the part also has `holding() -> ContextManager`: inside it only the calling
    thread sends.
    """

    name: str

    def save(self, peer: Peer) -> object:
        """Fetches this part's state from the acceptor, and returns it."""

    def load(self, peer: Peer, state: object) -> None:
        """Loads the state into another acceptor, under the same ids. `peer` has started and has been greeted."""


@dataclass(frozen=True, slots=True)
class _Served:
    service: Service
    handler: Handler
    inline: bool


class Session:
    """The session of this process with an acceptor. `peer` changes when the session moves, so do not store it.

    Attributes:
        id: for users, as in `remotegpu offload switch ID`.
        environment: the acceptor's current environment.
        place: a text for users, such as "acceptor cpu at gpu1:7070".
        objects: the object table of this side, set by the feature that has one.
    """

    def __init__(self, config: Config, connector: Connector, parts_of_greeting: Mapping[str, ClientService]) -> None:
        self.id = secrets.token_hex(4)
        self.config = config
        self.objects: Any = None
        self.parts: dict[str, Part] = {}
        self.states: dict[str, object] = {}
        self.services = parts_of_greeting
        self.connector = connector
        self.wish = wish(config, versions.installed())
        self.moves = 0
        self._served: list[_Served] = []
        self._since = time.time()
        self._earlier: dict[str, Any] = {}
        self._closed = False
        # Held by the thread that moves the session.
        self.moving = threading.RLock()
        self._peer, self.environment, self.place = self.connect(self.wish)
        self._control = control.Control(self)
        self._snapshots = moving.Snapshots(self)
        atexit.register(self.close)

    @classmethod
    def open(
        cls,
        config: Config,
        *,
        connector: Connector | None = None,
        offered: Mapping[str, ClientService] | None = None,
    ) -> "Session":
        """Connects to an acceptor and greets it.

        Args:
            connector: opens the connection; None: `remotegpu-connect`, with the shares of this process.
            offered: the services for the acceptor; None: code and files as the configuration allows.

        Raises:
            OffloadError: no acceptor is available, or its versions do not match; the message gives a remedy.
        """
        return cls(config, connector or connect.connector(), services(config) if offered is None else offered)

    @property
    def peer(self) -> Peer:
        """The connection. If it is lost and the configuration asks for it, the session first resumes on another
        acceptor.

        Raises:
            LostError: the connection is lost and cannot be resumed.
        """
        peer = self._peer
        # After a thread got LostError, `lost` is set here, even if the connection is not yet closed for other threads.
        if peer.activity.lost and not self._closed:
            moving.resume(self, peer)
            return self._peer
        return peer

    def register(self, part: Part) -> None:
        """Adds a part that moves with the session. Raises OffloadError if another part has this name."""
        if part.name in self.parts and self.parts[part.name] is not part:
            raise OffloadError(f"the session has a part {part.name} already")
        self.parts[part.name] = part

    def serve(self, service: Service, handler: Handler, *, inline: bool = False) -> None:
        """Registers a handler like `Peer.serve`, for this acceptor and those that the session moves to."""
        self._served.append(_Served(service, handler, inline))
        self._peer.serve(service, handler, inline=inline)

    def switch(
        self, *, backend: str | None = None, environment: str | None = None, timeout: float | None = None
    ) -> None:
        """Moves to another acceptor while the program runs. Nothing is lost, and other threads notice nothing.

        Waits until running calls have ended, at most `timeout` seconds. Without a back end and an environment, the
        configured preference chooses the acceptor.

        Raises:
            OffloadError: no such acceptor exists, or a part cannot move; the session stays at its acceptor.
            TimeoutError: calls did not end.
        """
        moving.switch(self, moved(self.wish, backend=backend, environment=environment), timeout)

    def snapshot(self) -> None:
        """Saves the acceptor's state in this process, to resume from it if the acceptor is lost.

        Raises:
            LostError: the acceptor is lost already.
        """
        moving.snapshot(self)

    def stats(self) -> dict[str, Any]:
        """Returns the session's description and counters.

        `acceptor` holds the acceptor's own statistics; None if it does not answer.
        """
        statistics: Any = None
        if not self._peer.closed.is_set():
            with contextlib.suppress(OffloadError, TimeoutError):
                statistics = self._peer.request(Service.SESSION, {"op": "stats"}, timeout=_BYE_SECONDS).header
        return {**self.describe(), "counters": self.counters(), "acceptor": statistics}

    def describe(self) -> dict[str, Any]:
        """Describes the session without a request to the acceptor."""
        return {
            "id": self.id,
            "pid": os.getpid(),
            "place": self.place,
            "environment": self.environment.to_dict(),
            "since": self._since,
            "moves": self.moves,
            "lost": self._peer.closed.is_set(),
        }

    def counters(self) -> dict[str, Any]:
        """Returns the sums of the counters over all connections of the session."""
        return _add(self._earlier, self._peer.counters.as_dict())

    def close(self) -> None:
        """Ends the session and the acceptor's process. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._snapshots.close()
        self._control.close()
        with contextlib.suppress(OffloadError, TimeoutError):
            self._peer.request(Service.SESSION, {"op": "bye"}, timeout=_BYE_SECONDS)
        self._peer.close()
        if file := os.environ.get(STATS_ENV):
            self._write_counters(Path(file))
        _forget(self)

    def _write_counters(self, path: Path) -> None:
        """Writes the counters to `path`.

        If that is a folder, writes to a file in it that the process id names, as the CUDA client does.
        """
        file = path / f"{os.getpid()}.json" if path.is_dir() else path
        with contextlib.suppress(OSError):
            file.write_text(json.dumps({**self.describe(), "counters": self.counters()}))

    def abandon(self) -> None:
        """Closes the inherited sockets in a forked child; the parent keeps the session."""
        self._closed = True
        atexit.unregister(self.close)
        self._control.abandon()
        self._peer.abandon(
            "the session is that of the parent process, from which this one was forked: what it holds can only be used "
            "there. Make it anew here, which opens a session of its own"
        )

    # For moving

    def connect(self, wanted: Wish) -> tuple[Peer, Environment, str]:
        """Connects to a new acceptor and greets it.

        Raises:
            OffloadError: no acceptor fits.
        """
        sock, told = self.connector(wanted)
        environment = Environment.from_dict(told["environment"])
        place = str(told.get("place") or f"acceptor {environment.name}")
        peer = Peer(sock, name=place, exit_code=told.get("exit_code"))
        try:
            peer.serve(Service.SESSION, lambda request: _answer(peer, request), inline=True)
            for service in self.services.values():
                service.attach(peer)
            for served in self._served:
                peer.serve(served.service, served.handler, inline=served.inline)
            peer.start()
            greeting = {"op": "hello", "versions": versions.installed(), "allow_skew": wanted.allow_skew}
            greeting |= process(self.config) | {name: service.hello() for name, service in self.services.items()}
            answer = peer.request(Service.SESSION, greeting, timeout=_GREETING_SECONDS).header
        except RemoteFailure as failure:
            peer.close()
            raise OffloadError(f"{place} takes no session: {failure.error}") from None
        except BaseException:
            peer.close()
            raise
        for warning in answer.get("warnings", ()):
            warnings.warn(f"{place}: {warning}", RuntimeWarning, stacklevel=2)
        return peer, Environment.from_dict(answer["environment"]), place

    @property
    def keeps(self) -> bool:
        """Whether snapshots of the acceptor's state are kept here, to resume from them."""
        return self.config.session.snapshot_seconds is not None

    def moved_from(self, peer: Peer) -> bool:
        """Returns whether the session has left this connection."""
        return self._peer is not peer

    def take(self, connected: tuple[Peer, Environment, str]) -> Peer:
        """Makes this connection the session's own. Returns the earlier one, which the caller must close."""
        earlier = self._peer
        self._earlier = _add(self._earlier, earlier.counters.as_dict())
        self._peer, self.environment, self.place = connected
        self.moves += 1
        return earlier


def _answer(peer: Peer, request: Request) -> Message | None:
    if request.header.get("op") == "end":
        peer.expect_end(str(request.header.get("reason"))[:500])
    return None


def _add(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Adds counters, including nested groups."""
    result = dict(left)
    for name, value in right.items():
        if isinstance(value, Mapping):
            result[name] = _add(result.get(name, {}), value)
        else:
            result[name] = result.get(name, 0) + value
    return result


class _Current:
    """The session of this process and its lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.session: Session | None = None
        self.config: Config | None = None


_current: Final = _Current()


def current() -> Session:
    """Returns the session of this process; opens it at the first use, with the configuration that is found.

    Raises:
        ConfigError: the configuration is wrong.
        OffloadError: no acceptor can be reached; the message gives a remedy.
    """
    session = _current.session
    if session is not None:
        return session
    with _current.lock:
        if _current.session is None:
            _current.session = Session.open(_current.config or load())
        return _current.session


def configure(config: Config) -> None:
    """Sets the configuration for `current`, so that `current` does not read the file."""
    _current.config = config


def use(session: Session | None) -> None:
    """Makes `session` the session of this process, for callers that open sessions themselves. None clears it.

    Raises:
        OffloadError: this process already has another session.
    """
    with _current.lock:
        if session is not None and _current.session is not None and _current.session is not session:
            raise OffloadError("this process has a session already: close it first")
        _current.session = session


def opened() -> Session | None:
    """Returns the session of this process; None if no session was opened."""
    return _current.session


def _forget(session: Session) -> None:
    if _current.session is session:
        _current.session = None


def _after_fork() -> None:
    _current.lock = threading.RLock()
    session, _current.session = _current.session, None
    if session is not None:
        session.abandon()


os.register_at_fork(after_in_child=_after_fork)

__all__ = ["Connector", "Part", "Session", "configure", "current", "opened", "use"]
