"""What a move is told by callers and by the other appliance is hostile: names, sizes, and callers that leave."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remotegpu.appliance.arrivals import Arrivals
from remotegpu.appliance.departures import Destination
from remotegpu.appliance.refusal import RefusalError
from remotegpu.rpc import pb

INVITATION = "ab" * 32
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
        (Destination("gpu.example:7070", "x" * 64, b"", ""), "invitation"),
        (Destination("gpu.example:7070", INVITATION * 1000, b"", ""), "invitation"),
        (Destination("gpu.example:7070", INVITATION, b"x" * (65 << 10), ""), "certificates"),
    ],
)
def test_what_is_no_place_is_refused_in_one_short_line(to: Destination, says: str) -> None:
    with pytest.raises(RefusalError, match=says) as refused:
        to.check()
    assert len(refused.value.message) < 200 and refused.value.message.isprintable()


class Leases:
    grace_seconds = 60

    def __init__(self) -> None:
        self.ended: list[str] = []

    def receive(self, lease_id: str, *_: object) -> Any:
        return SimpleNamespace(lease_id=lease_id, client="alice", devices=[])

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
        monkeypatch.setattr("remotegpu.appliance.arrivals._ask_of", lambda _: None)
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
