"""Memory on its way back to a lease: it counts as free, and requests that it will satisfy wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from support.stand_in import Session, StandIn, Tenant
from support.system import MIB, until

from remotegpu.api.quantities import Ask
from remotegpu.appliance import returns
from remotegpu.appliance.allocation import LeasedGpus
from remotegpu.appliance.exports import Exports
from remotegpu.appliance.grants import Quota
from remotegpu.appliance.state import Lease
from remotegpu.appliance.state import Session as SessionState

SHARE = 256 * MIB
LOST = 'raw {"op": "connection", "connected": false}'
HUNG_UP = 'raw {"op": "connection", "connected": false, "closed": true}'
ENDING = 'raw {"op": "ending"}'


@pytest.fixture
def tenant(appliance: StandIn) -> Iterator[Tenant]:
    lease = appliance.lease(Ask(milli_per_gpu=250))
    yield lease
    lease.close()


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


def test_what_does_not_come_back_in_time_is_refused_with_a_line_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "_RETURN_SECONDS", 0.05)

    async def ask() -> tuple[int, str]:
        quotas = [Quota(SHARE)]
        lease = Lease("00" * 16, "", "", LeasedGpus((0,), (SHARE,)), [], quotas, Exports(quotas))
        holder, other = (SessionState(name, lease, pid, "", None) for name, pid in (("holder", 7), ("other", 8)))
        lease.sessions = {each.session_id: each for each in (holder, other)}
        quotas[0].grant("holder", SHARE, SHARE)
        quotas[0].leave("holder", SHARE)
        return await returns.Returns(lambda _: asyncio.sleep(0)).grant(other, 0, MIB, MIB)

    size, line = asyncio.run(ask())
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
