"""Memory on its way back to a lease: it counts as free, and requests that it will satisfy wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from support.stand_in import LOST, Session, StandIn, Tenant
from support.system import MIB, until

from remotegpu.appliance.sessions import returns
from remotegpu.appliance.sessions.clients import Client
from remotegpu.appliance.sessions.exports import Exports
from remotegpu.appliance.sessions.sessions import Sessions, _note_end
from remotegpu.appliance.sessions.state import Lease, SessionProcess
from remotegpu.appliance.sessions.state import Session as SessionState
from remotegpu.appliance.shares.allocation import LeasedGpus
from remotegpu.appliance.shares.grants import Quota

SHARE = 256 * MIB
HUNG_UP = 'raw {"op": "connection", "connected": false, "closed": true}'
ENDING = 'raw {"op": "ending"}'


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as it:
        yield it


def free(session: Session) -> int:
    answer: int = session.ask("memory 0")["free"]
    return answer


def waits(granted: Future[int], beside: Session) -> bool:
    """Whether a request has no answer though one that was made after it has."""
    free(beside)
    return not granted.done()


def test_what_is_being_overwritten_counts_as_free_and_is_waited_for(
    appliance: StandIn, tenant: Tenant, pool: ThreadPoolExecutor
) -> None:
    first, other, third = tenant.session(1), tenant.session(2), tenant.session(3)
    assert first.grant(SHARE) == SHARE
    first.tell(f"leaving 0 {100 * MIB}")
    until(lambda: free(other) == 100 * MIB, 5, "what comes back counts as free")
    assert sum(gpu.used_bytes for gpu in appliance.gpus) == SHARE - 100 * MIB
    granted = pool.submit(other.grant, 90 * MIB)
    assert waits(granted, third)
    first.tell(f"return 0 {60 * MIB}")
    assert waits(granted, third)
    first.tell(f"return 0 {40 * MIB}")
    assert granted.result(10) == 90 * MIB


def test_what_would_not_be_enough_is_refused_at_once(tenant: Tenant) -> None:
    first, other = tenant.session(1), tenant.session(2)
    assert first.grant(SHARE) == SHARE
    first.tell(f"leaving 0 {100 * MIB}")
    until(lambda: free(other) == 100 * MIB, 5, "it comes back")
    assert other.grant(101 * MIB) == 0
    first.tell(f"return 0 {100 * MIB}")
    assert other.grant(100 * MIB) == 100 * MIB


def test_a_session_that_ends_is_waited_for_until_its_process_is_gone(tenant: Tenant, pool: ThreadPoolExecutor) -> None:
    first, other, third = tenant.session(1), tenant.session(2), tenant.session(3)
    assert first.grant(SHARE) == SHARE
    first.tell(ENDING)
    until(lambda: free(other) == SHARE, 5, "it ends")
    # The stand-in ends when the appliance has it end: all of it comes back then.
    assert pool.submit(other.grant, SHARE).result(10) == SHARE
    assert free(third) == 0


def test_a_request_asks_first_what_others_have_just_given_back(tenant: Tenant) -> None:
    """The appliance may not have read of it yet: the workers are asked before anybody is refused."""
    first, other = tenant.session(1), tenant.session(2)
    for _ in range(50):
        assert first.grant(SHARE) == SHARE
        first.ask(f"return 0 {SHARE}")
        assert other.grant(SHARE) == SHARE
        other.ask(f"return 0 {SHARE}")


def test_one_whose_client_closed_its_socket_gives_way_before_one_that_a_network_may_have_lost(tenant: Tenant) -> None:
    lost, hung_up, other = tenant.session(1), tenant.session(2), tenant.session(3)
    for each in (lost, hung_up):
        assert each.grant(100 * MIB) == 100 * MIB
    lost.ask(LOST)
    hung_up.ask(HUNG_UP)
    until(lambda: free(other) == SHARE, 5, "both are without a connection")
    assert other.grant(156 * MIB) == 156 * MIB
    assert "needed its place" in hung_up.rest()
    assert lost.ask("memory 0")["free"] == 0


def test_a_process_that_asks_without_end_is_ended() -> None:
    async def ask() -> tuple[list[str], int]:
        sessions, ended = Sessions.__new__(Sessions), list[str]()
        tasks = set[asyncio.Task[None]]()
        waits = asyncio.Event()

        def spawn(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
            task = asyncio.create_task(work)
            tasks.add(task)
            return task

        sessions._spawn = spawn  # type: ignore[method-assign]

        async def end(session: SessionState, code: int, reason: str) -> None:
            del code
            session.ended = True
            ended.append(reason)

        async def answer() -> None:
            await waits.wait()

        sessions.end = end  # type: ignore[method-assign]
        quotas = [Quota(SHARE)]
        lease = Lease("00" * 16, "", "", LeasedGpus((0,), (SHARE,)), [], quotas, Exports(quotas))
        session = SessionState("asks", lease, 7, "", None)
        for _ in range(2048):
            sessions._ask(session, answer())
        await asyncio.sleep(0)
        assert not ended
        for _ in range(2):
            sessions._ask(session, answer())
            await asyncio.sleep(0)
        waits.set()
        await asyncio.gather(*tasks)
        return ended, session.questions

    assert asyncio.run(ask()) == (["its process asked 2048 questions at once"], 0)


def test_what_does_not_come_back_in_time_is_refused_with_a_line_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "_RETURN_SECONDS", 0.05)

    async def ask() -> returns.Got:
        quotas = [Quota(SHARE)]
        lease = Lease("00" * 16, "", "", LeasedGpus((0,), (SHARE,)), [], quotas, Exports(quotas))
        holder, other = (SessionState(name, lease, pid, "", None) for name, pid in (("holder", 7), ("other", 8)))
        lease.sessions = {each.session_id: each for each in (holder, other)}
        quotas[0].grant("holder", SHARE, SHARE)
        quotas[0].leave("holder", SHARE)
        return await returns.Returns(lambda _: asyncio.sleep(0)).grant(other, 0, MIB, MIB)

    size, _, line = asyncio.run(ask())
    assert size == 0
    assert "pid 7 (overwrites what it freed)" in line


def test_a_lost_session_that_ends_by_itself_is_not_ended_for_another(tenant: Tenant, pool: ThreadPoolExecutor) -> None:
    lost, other = tenant.session(1), tenant.session(2)
    assert lost.grant(SHARE) == SHARE
    lost.ask(LOST)
    until(lambda: free(other) == SHARE, 5, "its connection is lost")
    granted = pool.submit(other.grant, SHARE)
    lost.tell(ENDING)
    assert granted.result(10) == SHARE
    assert "needed its place" not in lost.rest()


def test_memory_of_an_ended_client_is_waited_for_though_its_worker_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gets no processor, or stands still: the kernel has told that its client is gone."""
    monkeypatch.setattr(returns, "_SETTLE_SECONDS", 0.01)

    async def ask() -> tuple[returns.Got, list[SessionState]]:
        family, gave_way = Family(), list[SessionState]()
        family.first.leaving = False
        family.first.client = client = Client(7, "boot pid:[1] 5")

        async def give_way(session: SessionState) -> None:
            gave_way.append(session)
            family.quota.forget(session.session_id)
            returns.note_change(session.lease)

        client.ended = True
        _note_end(family.first, seen=True)
        return await returns.Returns(give_way).grant(family.heir, 0, SHARE, SHARE), gave_way

    got, gave_way = asyncio.run(ask())
    assert got == returns.Got(SHARE, 0, "")
    assert [each.session_id for each in gave_way] == ["first"]


@pytest.mark.parametrize("how", ["it ends", "it is lost"])
def test_a_place_is_waited_for_no_longer_than_until_its_session_has_gone(how: str) -> None:
    """Opening a session waits for one that ends or has no connection, and for no time that nothing cuts short."""

    async def turns() -> int:
        family, sessions = Family(), Sessions.__new__(Sessions)
        lease = family.first.lease
        family.first.leaving = how == "it ends"
        family.first.lost_since = time.monotonic()
        waiting = asyncio.create_task(sessions._make_room(lease, None))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        del lease.sessions["first"]
        returns.note_change(lease)
        for turn in range(10):
            if waiting.done():
                assert waiting.result(), "the caller looks again"
                return turn
            await asyncio.sleep(0)
        raise AssertionError("it sleeps on")

    assert asyncio.run(turns()) < 10


@pytest.mark.parametrize("wanted", [False, True], ids=["nobody wants it", "somebody wants it"])
def test_one_that_only_offers_its_memory_ends_for_its_place(wanted: bool) -> None:
    """Short programs of a small share, one after the other, wait for no offer that nobody takes."""

    async def told() -> list[tuple[str, int]]:
        family, sessions = Family(), Sessions.__new__(Sessions)
        if wanted:
            family.first.heir = family.heir, 0
        waiting = asyncio.create_task(sessions._make_room(family.first.lease, None))
        await asyncio.sleep(0)
        returns.note_change(family.first.lease)
        assert await waiting
        return family.told["first"].packets

    assert asyncio.run(told()) == ([] if wanted else [("end", 0)])


class Told:
    """In place of a session's process: what the appliance tells it."""

    def __init__(self) -> None:
        self.packets: list[tuple[str, int]] = []
        self.zeroed: object = None

    def send(self, packet: dict[str, object], fds: Sequence[int] = ()) -> None:
        self.packets.append((str(packet["op"]), len(fds)))
        self.zeroed = packet.get("zeroed", self.zeroed)


class Family:
    """A session that ends and offers all of its lease's memory, and one that wants it."""

    def __init__(self) -> None:
        self.quota = Quota(SHARE)
        lease = Lease("00" * 16, "", "", LeasedGpus((0,), (SHARE,)), [], [self.quota], Exports([self.quota]))
        self.first, self.heir = (SessionState(name, lease, pid, "", None) for name, pid in (("first", 7), ("heir", 8)))
        lease.sessions = {each.session_id: each for each in (self.first, self.heir)}
        self.told = {}
        for each in (self.first, self.heir):
            self.told[each.session_id] = told = Told()
            each.process = cast(SessionProcess, told)
        self.quota.grant("first", SHARE, SHARE)
        self.first.leaving = self.first.offers = True

    async def ask(self, least: int, *, maps: bool = True) -> asyncio.Task[returns.Got]:
        """The request, when it has asked the one that ends."""
        asking = returns.Returns(lambda _: asyncio.sleep(0)).grant(self.heir, 0, least, least, maps=maps)
        task = asyncio.get_running_loop().create_task(asking)
        for _ in range(5):
            await asyncio.sleep(0)
        return task

    def hand_on(self, size: int, *, zeroed: bool = False) -> bool:
        """Whether the descriptor went to the one that wants the memory."""
        with Path("/dev/null").open("rb", buffering=0) as file:
            returns.hand_on(self.first, 0, size, file, zeroed=zeroed)
        assert self.told["first"].packets[-1] == ("handedon", 0)
        return ("inherit", 1) in self.told[self.heir.session_id].packets


@pytest.mark.parametrize("zeroed", [False, True])
def test_what_a_session_leaves_is_handed_to_who_waits_for_it(zeroed: bool) -> None:
    async def run() -> None:
        family = Family()
        request = await family.ask(100 * MIB)
        assert family.told["first"].packets == [("handon", 0)]
        assert family.hand_on(120 * MIB, zeroed=zeroed)
        assert family.told["heir"].zeroed is zeroed
        assert await request == returns.Got(120 * MIB, 120 * MIB, "")
        assert family.quota.granted == {"first": SHARE - 120 * MIB, "heir": 120 * MIB}
        assert family.heir.inherited == {}

    asyncio.run(run())


@pytest.mark.parametrize("why", ["nobody asked", "it ends, too", "more than it had", "another device"])
def test_what_nobody_wants_or_may_have_is_handed_to_nobody(why: str) -> None:
    async def run() -> None:
        family = Family()
        request = None if why == "nobody asked" else await family.ask(100 * MIB)
        if why == "it ends, too":
            family.heir.leaving = True
        elif why == "another device":
            family.first.heir = (family.heir, 1)
        assert not family.hand_on(SHARE + 1 if why == "more than it had" else 100 * MIB)
        assert family.quota.granted == {"first": SHARE}
        if request is not None:
            request.cancel()

    asyncio.run(run())


def test_memory_that_the_driver_takes_by_itself_is_not_inherited() -> None:
    async def run() -> None:
        family = Family()
        request = await family.ask(100 * MIB, maps=False)
        assert family.told["first"].packets == []
        family.quota.forget("first")
        returns.note_change(family.first.lease)
        assert await request == returns.Got(100 * MIB, 0, "")

    asyncio.run(run())


class Returner(Family):
    """A session that lives and offers what it has just returned, and one that wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.first.leaving = self.first.offers = False
        self.quota.leave("first", 150 * MIB)
        self.first.offers_on = {0}

    async def ask(self, least: int, *, maps: bool = True) -> asyncio.Task[returns.Got]:
        request = await super().ask(least, maps=maps)
        # Its worker had told all before it was asked.
        returns.all_settled(self.first)
        for _ in range(5):
            await asyncio.sleep(0)
        return request


def test_what_a_living_session_returned_is_handed_to_who_waits_for_it() -> None:
    async def run() -> None:
        returner = Returner()
        request = await returner.ask(100 * MIB)
        assert returner.told["first"].packets == [("settle", 0), ("handon", 0)]
        assert returner.hand_on(120 * MIB)
        assert await request == returns.Got(120 * MIB, 120 * MIB, "")
        assert returner.quota.granted == {"first": SHARE - 120 * MIB, "heir": 120 * MIB}
        assert returner.quota.leaving["first"] == 30 * MIB
        # It asked once, and what is left is told of when it has been overwritten.
        assert returner.first.offers_on == set()

    asyncio.run(run())


def test_who_returned_it_and_wants_it_again_waits_until_it_has_been_overwritten() -> None:
    """Its worker offers nothing any more by then."""

    async def run() -> None:
        returner = Returner()
        returner.heir = returner.first
        request = await returner.ask(150 * MIB)
        assert returner.told["first"].packets == []
        returner.quota.give_back("first", 150 * MIB)
        returns.note_change(returner.first.lease)
        assert await request == returns.Got(150 * MIB, 0, "")
        assert returner.quota.granted == {"first": SHARE}

    asyncio.run(run())


def test_no_more_than_it_returned_is_handed_on() -> None:
    async def run() -> None:
        returner = Returner()
        request = await returner.ask(100 * MIB)
        assert not returner.hand_on(151 * MIB)
        assert returner.quota.granted == {"first": SHARE}
        request.cancel()

    asyncio.run(run())
