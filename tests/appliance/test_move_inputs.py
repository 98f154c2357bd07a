"""Hostile input to a move, from callers and from the other appliance: names, sizes, and callers that disconnect."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from support.stand_in import StandIn, Tenant

from remotegpu.api.quantities import Ask
from remotegpu.appliance.moving.arrivals import Arrivals
from remotegpu.appliance.moving.destinations import Destination, Destinations
from remotegpu.appliance.refusal import RefusalError
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

INVITATION = "ab" * 32
# A frame of HTTP/2 (RFC 9113, 6.5): length, type, flags, stream.
EMPTY_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
LEASE, SECRET, TICKET = "01" * 16, "02" * 32, "03" * 32


@pytest.mark.parametrize(
    "to",
    [
        Destination("gpu.example:7070", INVITATION, b"", ""),
        Destination("[::1]:7070", INVITATION, b"x" * 4096, "gpu-1.example"),
        Destination("10.0.0.1:7070", INVITATION, b"x", "a" * 253),
    ],
)
def test_a_place_is_taken(to: Destination) -> None:
    to.check()


@pytest.mark.parametrize(
    ("to", "says"),
    [
        (Destination("gpu.example:7070", INVITATION, b"", "a" * 254), "server name"),
        (Destination("gpu.example:7070", INVITATION, b"", "a" * 230_000), "server name"),
        (Destination("gpu.example:7070", INVITATION, b"", 'a"b'), "server name"),
        (Destination("gpu.example:7070", INVITATION, b"", "a\x1b[2J"), "server name"),
        (Destination("gpu.example:7070", INVITATION, b"", "a\n"), "server name"),
        (Destination("h" * 300 + ":7070", INVITATION, b"", ""), "address"),
        (Destination("gpu.example", INVITATION, b"", ""), "address"),
        (Destination("gpu.example:0", INVITATION, b"", ""), "address"),
        (Destination("gpu.example:4294967295", INVITATION, b"", ""), "address"),
        (Destination("unix:/run/docker.sock:1", INVITATION, b"", ""), "address"),
        (Destination("a\x1b[2J:7070", INVITATION, b"", ""), "address"),
        (Destination("a\nb:7070", INVITATION, b"", ""), "address"),
        (Destination("gpu.example:7070", "x" * 64, b"", ""), "invitation"),
        (Destination("gpu.example:7070", INVITATION * 1000, b"", ""), "invitation"),
        (Destination("gpu.example:7070", INVITATION, b"x" * (65 << 10), ""), "certificates"),
    ],
)
def test_what_is_no_place_is_refused_in_one_short_line(to: Destination, says: str) -> None:
    with pytest.raises(RefusalError, match=says) as refused:
        to.check()
    assert len(refused.value.message) < 200 and refused.value.message.isprintable()


NAMED = Destinations(("gpu.example:7070", "[fe80::1]:7070"))


@pytest.mark.parametrize("endpoint", ["gpu.example:7070", "GPU.example:7070", "fe80::1:7070", "[fe80::1]:7070"])
def test_users_move_leases_to_where_an_administrator_says(endpoint: str) -> None:
    NAMED.check(Destination(endpoint, INVITATION, b"", ""), "alice")


@pytest.mark.parametrize("endpoint", ["gpu.example:7071", "gpu.example.evil:7070", "127.0.0.1:22", "10.0.0.1:7070"])
def test_and_nowhere_else_but_administrators_do(endpoint: str) -> None:
    to = Destination(endpoint, INVITATION, b"", "")
    for named in (NAMED, Destinations(())):
        with pytest.raises(RefusalError, match=r"alice moves leases only .*--move-to") as refused:
            named.check(to, "alice")
        assert refused.value.code is grpc.StatusCode.PERMISSION_DENIED
        named.check(to, None)
    Destinations(("any",)).check(to, "alice")


@pytest.mark.parametrize("named", ["", "gpu.example", "gpu.example:0", "everywhere", "a b:7070"])
def test_what_an_administrator_names_is_an_address(named: str) -> None:
    with pytest.raises(ValueError, match="neither HOST:PORT nor any"):
        Destinations((named,))


class Leases:
    grace_seconds = 60

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.here: Any = None

    async def finish_end(self, lease_id: str) -> None:
        assert lease_id == LEASE

    def receive(self, lease_id: str, *_: object) -> Any:
        self.here = SimpleNamespace(lease_id=lease_id, client="alice", devices=[])
        return self.here

    def by_id(self, _: str) -> Any:
        return self.here

    def end(self, lease_id: str, _: str) -> None:
        self.ended.append(lease_id)


class Sessions:
    """Starts no worker: `open` never returns."""

    def __init__(self) -> None:
        self.opening = asyncio.Event()

    def find(self, _: str) -> None:
        return None

    async def open(self, *_: object, **__: object) -> None:
        self.opening.set()
        await asyncio.Event().wait()


def arrivals(leases: Leases, sessions: Sessions) -> Arrivals:
    snapshot = SimpleNamespace(driver_version=13000)
    return Arrivals(cast("Any", leases), cast("Any", sessions), cast("Any", None), cast("Any", snapshot))


def request(*session_ids: str) -> pb.ReceiveLeaseRequest:
    sessions = [pb.MovingSession(session_id=each, ticket=TICKET) for each in session_ids]
    return pb.ReceiveLeaseRequest(
        driver_version=13000, lease_id=LEASE, lease_secret=SECRET, sessions=sessions,
        devices=[], compute_milli=0,
    )  # fmt: skip


def test_sessions_of_one_name_are_refused_before_anything_starts() -> None:
    async def receive() -> None:
        leases = Leases()
        made = arrivals(leases, Sessions())
        arrival = await made.invited(made.invite("alice", ""))
        with pytest.raises(RefusalError, match="one name"):
            await made.receive(arrival, request("aa" * 16, "bb" * 16, "aa" * 16))
        assert leases.ended == []

    asyncio.run(receive())


def test_a_caller_that_leaves_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def receive() -> None:
        leases, sessions = Leases(), Sessions()
        made = arrivals(leases, sessions)
        monkeypatch.setattr("remotegpu.appliance.moving.arrivals._ask_of", lambda _: None)
        arrival = await made.invited(made.invite("alice", ""))
        receiving = asyncio.create_task(made.receive(arrival, request("aa" * 16)))
        await sessions.opening.wait()
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        assert (leases.ended, made.expected) == ([LEASE], False)

    asyncio.run(receive())


def test_one_owner_does_not_take_all_places() -> None:
    async def invite() -> None:
        made = arrivals(Leases(), Sessions())
        for _ in range(16):
            made.invite("alice", "")
        with pytest.raises(RefusalError, match="of them yours"):
            made.invite("alice", "")
        made.invite("bob", "")

    asyncio.run(invite())


USERS = ("alice", "bob", "carol", "dave", "erin")


def test_moves_to_where_nobody_answers_keep_nobody_waiting(dist: Path, tmp_path: Path) -> None:
    """More moves at once than the machine's thread pool has threads, each of a user's own lease."""
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{name}:token-of-{name}\n" for name in (*USERS, "frank")))
    with contextlib.ExitStack() as stack:
        to = stack.enter_context(never_answering())
        options = ("--tokens", str(tokens), "--grace", "60s", "--move-to", to)
        here = stack.enter_context(StandIn(dist, *options, access=Access("token-of-frank")))
        frank = here.lease(Ask(memory_bytes=4 << 20))
        begins, moves = [], []
        for name in USERS:
            client = ApplianceClient(parse_endpoint(here.endpoint), Access(f"token-of-{name}"), 20)
            stack.callback(client.close)
            for _ in range(9):
                with client.open_lease(Ask(memory_bytes=4 << 20), "test", wait=False) as events:
                    granted = next(event.granted for event in events if event.HasField("granted"))
                Tenant(here, granted, hold=True)
                request = pb.MoveLeaseRequest(lease_id=granted.lease_id, to=to, invitation=INVITATION)
                begins.append(partial(client._stub.MoveLease, request, metadata=client._metadata))
        for number, begin in enumerate(begins):
            move = begin()
            stack.callback(move.cancel)
            if number % 9 < 8:
                next(move)
                moves.append(move)
                continue
            with pytest.raises(grpc.RpcError, match="8 leases of yours move already"):
                list(move)
            # The user does not learn what listens at an address that is not a known appliance.
            begin.args[0].to = f"127.0.0.1:{here.endpoint.rpartition(':')[2]}"
            with pytest.raises(grpc.RpcError, match="only to where --move-to"):
                list(begin())
        state = pb.DeviceStateRequest(lease_id=frank.granted.lease_id, lease_secret=frank.granted.lease_secret)
        assert len(here.client._stub.DeviceState(state, timeout=20).devices) == 1
        assert not any(move.done() for move in moves), "and they wait still"


@contextlib.contextmanager
def never_answering() -> Iterator[str]:
    """The address of a server that speaks HTTP/2 and answers no call."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening, contextlib.ExitStack() as stack:

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    stack.enter_context(connection)
                    connection.sendall(EMPTY_SETTINGS)

        threading.Thread(target=greet, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
