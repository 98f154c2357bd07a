"""Gets leases, shows why that takes long, and holds them."""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.api.objects import Share
from remotegpu.api.quantities import Ask
from remotegpu.cli.run.child import stop_if_interrupted
from remotegpu.cli.run.placement import possible, spread
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, Endpoint, parse_endpoint

if TYPE_CHECKING:
    from rich.status import Status

_POLL_SECONDS: Final = 1.0
_TELL_AGAIN_SECONDS: Final = 30.0
_MORE_ATTEMPTS: Final = 2
_PAUSE_SECONDS: Final = 0.1
# A lease that has moved so often during one search is given up.
_MOST_MOVES: Final = 8
# An appliance keeps a lease so long after its holding connection broke.
_RECONNECT_SECONDS: Final = 10.0


class WaitNotice:
    """Shows why and how long a share is waited for: one live line on a terminal, a line now and then elsewhere."""

    def __init__(self, what: str = "for a share") -> None:
        self._what = what
        self._since = time.monotonic()
        self._status: Status | None = None
        self._told = ("", 0.0)

    def show(self, reason: str) -> None:
        stop_if_interrupted()
        waited = time.monotonic() - self._since
        text = f"waiting {waited:.0f} s {self._what}: {reason}"
        if sys.stderr.isatty():
            self._show_live(text)
            return
        told, when = self._told
        if reason != told or waited >= when + _TELL_AGAIN_SECONDS:
            self._told = (reason, waited)
            print(f"remotegpu: {text}", file=sys.stderr, flush=True)  # noqa: T201

    def _show_live(self, text: str) -> None:
        if self._status is None:
            # Imported only here: a run that need not wait starts without it.
            from rich.console import Console  # noqa: PLC0415

            self._status = Console(stderr=True, markup=False).status("")
            self._status.start()
        self._status.update(text)

    def end(self) -> None:
        if self._status is not None:
            self._status.stop()


@dataclass(frozen=True, slots=True)
class _Moved:
    """A lease's new place, as reported by the gateway of its former appliance."""

    endpoint: str
    data_port: int
    server_name: str | None


@dataclass(slots=True)
class HeldLease:
    """A lease and the connection that holds it."""

    client: ApplianceClient
    granted: pb.Granted
    tls: bool
    connection: socket.socket | None = None
    closing: bool = False

    @property
    def share(self) -> Share:
        access = self.client.access
        return Share(
            endpoint=str(self.client.endpoint),
            lease_id=self.granted.lease_id,
            lease_secret=self.granted.lease_secret,
            ca=None if access.ca is None else str(access.ca.resolve()),
            server_name=access.server_name,
        )

    def hold(self) -> None:
        """Opens the holding connection, and keeps it open from a thread of its own.

        A connection that is cut at once is tried again, as the lease lives for some seconds without it.
        """
        for _ in range(_MORE_ATTEMPTS):
            with contextlib.suppress(ApplianceError):
                self.connection = self._connect()
                break
            time.sleep(_PAUSE_SECONDS)
        else:
            self.connection = self._connect()
        threading.Thread(target=self._keep, daemon=True).start()

    def close(self) -> None:
        self.closing = True
        with contextlib.suppress(ApplianceError):
            self.client.close_lease(self.granted.lease_id, self.granted.lease_secret)
        if self.connection is not None:
            self.connection.close()

    def _connect(self) -> socket.socket:
        for _ in range(_MOST_MOVES):
            if (connection := self._try_connect()) is not None:
                return connection
        raise ApplianceError(Failure.UNAVAILABLE, f"the lease moves on and on, last to {self.client.endpoint}")

    def _try_connect(self) -> socket.socket | None:
        """Connects; None if the lease has moved, after which this lease uses the new appliance."""
        connection = self.client.connect_data(self.granted.data_port, tls=self.tls)
        where = Endpoint(self.client.endpoint.host, self.granted.data_port)
        preface = b"RGL1" + bytes.fromhex(self.granted.lease_id) + bytes.fromhex(self.granted.lease_secret)
        try:
            connection.sendall(preface)
            answer = connection.recv(1)
            moved = self._moved(connection) if answer == b"M" else None
        except (OSError, ValueError):
            answer, moved = b"", None
        if moved is not None:
            connection.close()
            self._follow(moved)
            return None
        if answer != b"K":
            connection.close()
            raise ApplianceError(
                Failure.UNAVAILABLE, f"{where} did not accept the lease: is it the appliance's data port?"
            )
        connection.settimeout(None)
        return connection

    def _moved(self, connection: socket.socket) -> _Moved:
        """Reads the new place. Raises ValueError if it is invalid, and OSError."""
        told = b""
        while len(told) < 2 or len(told) < 2 + int.from_bytes(told[:2], "little"):
            if not (more := connection.recv(4096)):
                raise ValueError("it ends too early")
            told += more
        return _Moved(**json.loads(told[2:]))

    def _follow(self, moved: _Moved) -> None:
        access = Access(self.client.access.token, self.client.access.ca, moved.server_name)
        before, self.client = self.client, ApplianceClient(parse_endpoint(moved.endpoint), access)
        self.granted.data_port = moved.data_port
        before.close()

    def _keep(self) -> None:
        while not self.closing:
            assert self.connection is not None
            with contextlib.suppress(OSError):
                self.connection.recv(1)
            if self.closing:
                return
            deadline = time.monotonic() + max(_RECONNECT_SECONDS, self.granted.grace_seconds)
            while True:
                with contextlib.suppress(ApplianceError):
                    self.connection = self._connect()
                    break
                if self.closing:
                    return
                if time.monotonic() > deadline:
                    text = (
                        f"remotegpu: the appliance at {self.client.endpoint} ended the lease; its GPU answers no more"
                    )
                    print(text, file=sys.stderr, flush=True)  # noqa: T201
                    return
                time.sleep(0.2)


@contextlib.contextmanager
def leases(
    clients: Sequence[ApplianceClient], ask: Ask, command: Sequence[str], *, wait: bool
) -> Iterator[list[HeldLease]]:
    """Yields leases that together are the requested share; closed after the block."""
    who = f"{socket.gethostname()} pid {os.getpid()} {' '.join(command)}"
    tls = [client.hello().tls for client in clients]
    if ask.compute.is_given:
        _require_turns(clients)
    notice = WaitNotice()
    held: list[HeldLease] = []
    try:
        if len(clients) == 1:
            held.append(HeldLease(clients[0], _open_one(clients[0], ask, who, notice if wait else None), tls[0]))
        else:
            held.extend(_open_several(clients, tls, ask, who, notice if wait else None))
        notice.end()
        for lease in held:
            lease.hold()
        yield held
    finally:
        notice.end()
        for lease in held:
            lease.close()


def _require_turns(clients: Sequence[ApplianceClient]) -> None:
    """Refuses appliances that do not divide time; one of an earlier version would not even refuse."""
    for client in clients:
        if client.inventory().compute_mode != "turns":
            raise ApplianceError(
                Failure.INVALID,
                f"{client.endpoint} does not divide the time of its GPUs: start it with --compute-mode turns, or leave "
                "out --compute and --compute-limit",
            )


def _open_one(client: ApplianceClient, ask: Ask, who: str, notice: WaitNotice | None) -> pb.Granted:
    with client.open_lease(ask, who, wait=notice is not None) as events:
        for event in events:
            if event.HasField("granted"):
                return event.granted
            if notice is not None:
                notice.show(event.waiting.reason)
    raise ApplianceError(Failure.UNAVAILABLE, f"{client.endpoint} ended the request for a share; is it shutting down?")


def _open_several(
    clients: Sequence[ApplianceClient], tls: Sequence[bool], ask: Ask, who: str, notice: WaitNotice | None
) -> list[HeldLease]:
    """Opens all leases or none, in a loop: if callers held one while waiting for another, two could deadlock."""
    while True:
        inventories = [client.inventory() for client in clients]
        if not possible(inventories, ask):
            places = ", ".join(str(client.endpoint) for client in clients)
            raise ApplianceError(Failure.BUSY, f"{ask} is more than {places} have together; ask for less")
        counts = spread(inventories, ask)
        if counts is not None:
            held = _try_open(clients, tls, counts, ask, who)
            if held is not None:
                return held
        reason = f"{ask} is not free on {len(clients)} appliances together"
        if notice is None:
            raise ApplianceError(Failure.BUSY, f"{reason}; try later, or leave out --no-wait")
        notice.show(reason)
        time.sleep(_POLL_SECONDS)


def _try_open(
    clients: Sequence[ApplianceClient], tls: Sequence[bool], counts: Sequence[int], ask: Ask, who: str
) -> list[HeldLease] | None:
    held: list[HeldLease] = []
    try:
        for client, its_tls, count in zip(clients, tls, counts, strict=True):
            if count:
                part = replace(ask, count=count)
                held.append(HeldLease(client, _open_one(client, part, who, None), its_tls))
    except ApplianceError as error:
        for lease in held:
            lease.close()
        if error.failure is Failure.BUSY:
            return None
        raise
    return held
