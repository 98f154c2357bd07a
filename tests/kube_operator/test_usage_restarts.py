"""Tests of the usage record when an operator is killed between writing the record and the claim's status."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.config_maps import ConfigMaps

from remotegpu.api import usage as records
from remotegpu.api.claims import Allocation, ClaimStatus, GPUClaim, Phase, Reason
from remotegpu.api.conditions import Condition
from remotegpu.api.usage import Holding
from remotegpu_operator.usage.journal import Journal, Retention
from remotegpu_operator.usage.usage import Usage

START = 1_795_000_000
PENDING = GPUClaim("team", "train", "uid")


def stamp(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def having(milli: int, since: int, phase: Phase = Phase.ALLOCATED) -> ClaimStatus:
    """Builds a claim's status with a share of `milli` since a time; `milli` 0 means no share."""
    allocations = (Allocation("a", "node", "GPU-1", "A100", milli * 1000, milli),) if milli else ()
    state = "True" if milli else "False"
    condition = Condition("Allocated", state, Reason.ALLOCATED, "", stamp(since))  # type: ignore[arg-type]
    return ClaimStatus(phase=phase, allocations=allocations, conditions=(condition,))


def stored(status: ClaimStatus) -> GPUClaim:
    return replace(PENDING, status=status)


@dataclass
class Scene:
    """A sequence of operators, with a fake API server and a clock that the test sets."""

    api: ConfigMaps = field(default_factory=ConfigMaps)
    now: int = START
    claims: dict[str, GPUClaim] = field(default_factory=lambda: {PENDING.uid: PENDING})

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Usage]:
        """Runs an operator. The end of the block acts as a SIGKILL: unwritten state is lost."""
        journal = Journal(self.api, "system", Retention())  # type: ignore[arg-type]
        made = Usage(journal, lambda claim: "somebody", clock=lambda: self.now)
        running = asyncio.create_task(made.run())
        await made.begin(self.claims)
        try:
            yield made
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    def holdings(self) -> list[Holding]:
        return [each for each in self.api.read().holdings.values() if not each.void]

    async def recorded(self, wanted: Callable[[list[Holding]], bool]) -> None:
        async with asyncio.timeout(10):
            while not wanted(self.holdings()):  # noqa: ASYNC110 (the operator tells nobody)
                await asyncio.sleep(0.01)

    async def nothing_open(self) -> Holding:
        await self.recorded(lambda found: all(each.end is not None for each in found))
        (one,) = self.holdings()
        return one


def scene(work: Callable[[Scene], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Decorates an async test: runs it in an event loop with a new scene."""
    return lambda: asyncio.run(work(Scene()))


@scene
async def test_killed_before_the_status(it: Scene) -> None:
    """The share was recorded but never stored in the claim's status, so the record must drop it."""
    async with it.operator() as first:
        await first.announce(PENDING, having(250, START))
        assert [each.start for each in it.holdings()] == [START]
    it.now += 20
    async with it.operator():
        await it.recorded(lambda found: found == [])


@scene
async def test_killed_behind_the_status(it: Scene) -> None:
    """The claim ended before an operator saw the share in its status. The record has the uncertain time."""
    async with it.operator() as first:
        await first.announce(PENDING, having(250, START))
    it.claims.clear()
    it.now += 20
    async with it.operator():
        one = await it.nothing_open()
    assert (one.start, one.end, one.unknown, one.user) == (START, START, 20, "somebody")


@scene
async def test_killed_behind_the_status_and_it_stays(it: Scene) -> None:
    async with it.operator() as first:
        await first.announce(PENDING, having(250, START))
    it.claims[PENDING.uid] = stored(having(250, START))
    it.now += 20
    async with it.operator() as second:
        second.observe(it.claims[PENDING.uid])
        it.now += 5
        second.gone(PENDING.uid)
        one = await it.nothing_open()
    assert (one.start, one.end, one.unknown) == (START, START + 25, 0)


@scene
async def test_deleted_while_nobody_looks(it: Scene) -> None:
    """The share counts until the time up to which the record is complete. The rest is uncertain time."""
    async with it.operator() as first:
        await first.announce(PENDING, having(250, START))
        first.observe(stored(having(250, START)))
        it.now += 100
    known = it.api.read().until
    it.api.kept["remotegpu-usage"]["data"]["until"] = str(START + 90)
    assert known < it.now
    it.claims.clear()
    it.now += 20
    async with it.operator():
        one = await it.nothing_open()
    assert (one.end, one.unknown) == (START + 90, 30)


@scene
async def test_statuses_that_somebody_emptied(it: Scene) -> None:
    """An uninstall clears the claims' statuses. The shares before it must still count."""
    async with it.operator() as first:
        await first.announce(PENDING, having(250, START))
        first.observe(stored(having(250, START)))
    it.api.kept["remotegpu-usage"]["data"]["until"] = str(START + 3600)
    it.now += 5000
    async with it.operator():
        one = await it.nothing_open()
    assert (one.end, one.unknown) == (START + 3600, 1400)


@scene
async def test_another_share_by_an_operator_that_records_nothing(it: Scene) -> None:
    """An operator of a release without records ended the share and allocated another one: these are two holdings."""
    async with it.operator() as first:
        await first.announce(PENDING, having(250, START))
        first.observe(stored(having(250, START)))
    it.api.kept["remotegpu-usage"]["data"]["until"] = str(START + 100)
    it.claims[PENDING.uid] = stored(having(250, START + 700))
    it.now += 1000
    async with it.operator():
        await it.recorded(lambda found: len(found) == 2)
    assert [(each.start, each.end, each.unknown) for each in it.holdings()] == [
        (START, START + 100, 600),
        (START + 700, None, 0),
    ]


@scene
async def test_taken_back_behind_the_record(it: Scene) -> None:
    """The operator ended the share and was killed before it recorded the end. The status has the time."""
    async with it.operator() as first:
        await first.announce(PENDING, having(250, START))
        first.observe(stored(having(250, START)))
    it.claims[PENDING.uid] = stored(having(0, START + 40, Phase.EXPIRED))
    it.now += 100
    async with it.operator():
        one = await it.nothing_open()
    assert (one.end, one.unknown) == (START + 40, 0)


@scene
async def test_killed_in_the_middle_of_a_resize(it: Scene) -> None:
    """A resize that was not stored has no effect: the old share continues without a gap."""
    async with it.operator() as first:
        await first.announce(PENDING, having(250, START))
        first.observe(stored(having(250, START)))
        it.now += 10
        await first.announce(stored(having(250, START)), having(500, START))
    it.claims[PENDING.uid] = stored(having(250, START))
    it.now += 10
    async with it.operator() as second:
        second.observe(it.claims[PENDING.uid])
        second.gone(PENDING.uid)
        await it.recorded(lambda found: all(each.end is not None for each in found))
    amounts = records.amounts(it.api.read(), 0, START * 2)
    assert sum(each.milli for each in amounts.values()) == 250 * 20


@scene
async def test_a_resize_counts_each_size(it: Scene) -> None:
    async with it.operator() as only:
        await only.announce(PENDING, having(250, START))
        only.observe(stored(having(250, START)))
        it.now += 10
        await only.announce(stored(having(250, START)), having(500, START))
        # Two late reports of earlier states.
        only.observe(stored(having(250, START)))
        only.observe(stored(having(500, START)))
        it.now += 7
        only.gone(PENDING.uid)
        await it.recorded(lambda found: all(each.end is not None for each in found))
    assert [(each.shares[0].milli, each.start, each.end) for each in it.holdings()] == [
        (250, START, START + 10),
        (500, START + 10, START + 17),
    ]


@scene
async def test_refused_by_the_api_server(it: Scene) -> None:
    async with it.operator() as only:
        await only.announce(PENDING, having(250, START))
        only.retract(PENDING)
        await it.recorded(lambda found: found == [])


@scene
async def test_what_nobody_recorded(it: Scene) -> None:
    """Claims from before the first record count from the time in their status."""
    it.claims[PENDING.uid] = stored(having(250, START - 3600))
    async with it.operator() as only:
        await it.recorded(lambda found: [each.start for each in found] == [START - 3600])
        only.gone(PENDING.uid)
        one = await it.nothing_open()
    assert (one.start, one.end) == (START - 3600, START)


@scene
async def test_the_api_server_takes_no_record(it: Scene) -> None:
    """An allocation waits for the record for at most two seconds. The share is recorded when writes work again."""
    async with it.operator() as only:
        began = time.monotonic()
        it.api.fails_from = it.api.calls
        await only.announce(PENDING, having(250, START))
        assert time.monotonic() - began < 4
        only.observe(stored(having(250, START)))
        assert it.holdings() == []
        it.api.fails_from = -1
        await it.recorded(lambda found: [each.start for each in found] == [START])


@scene
async def test_sessions(it: Scene) -> None:
    """A session on any appliance counts as use. After the end of an operator a claim does not count as in use."""
    usage_seconds = 30
    async with it.operator() as first:
        await first.announce(PENDING, having(250, START))
        first.observe(stored(having(250, START)))
        first.told("a", frozenset({PENDING.uid}))
        it.now += usage_seconds
        first.told("b", frozenset({PENDING.uid}))
        first.told("a", frozenset())
        assert first._held[PENDING.uid].in_use_since == START
        first.told("b", frozenset())
        assert first._held[PENDING.uid].used_until(it.now + 99) == usage_seconds
        first.told("a", frozenset({PENDING.uid}))
        await first._write(with_head=True)
    it.claims[PENDING.uid] = stored(having(250, START))
    it.now += 500
    async with it.operator() as second:
        held = second._held[PENDING.uid]
        assert held.in_use_since is None
        # A claim does not count as idle before its appliance has reported.
        claim = it.claims[PENDING.uid]
        it.now += 300
        assert second.unused(claim) == 0
        second.told("a", frozenset())
        assert second.unused(claim) == 300
        assert held.used_until(it.now) == pytest.approx(usage_seconds, abs=1)
        second.told("a", frozenset({PENDING.uid}))
        it.now += 10
        second.gone(PENDING.uid)
        one = await it.nothing_open()
    assert one.used == pytest.approx(usage_seconds + 10, abs=1)


@scene
async def test_a_share_that_was_perhaps_never_stored_has_no_time_that_is_certain(it: Scene) -> None:
    """The API server did not answer, and then the claim gets another share."""
    async with it.operator() as only:
        await only.announce(PENDING, having(250, START))
        it.now += 10
        await only.announce(PENDING, having(500, START + 10))
        only.observe(stored(having(500, START + 10)))
        it.now += 5
        only.gone(PENDING.uid)
        await it.recorded(lambda found: all(each.end is not None for each in found))
    assert [(each.shares[0].milli, each.start, each.end, each.unknown) for each in it.holdings()] == [
        (250, START, START, 10),
        (500, START + 10, START + 15, 0),
    ]
