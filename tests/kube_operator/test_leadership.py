"""Tests of the Lease with a real API server and clocks that the tests set: only the holder may write."""

from __future__ import annotations

import asyncio
import functools
import threading
from pathlib import Path
from typing import Any

import pytest
from support.kubelab import SYSTEM, Kube
from support.system import free_port, until

from remotegpu_operator.cluster import leadership
from remotegpu_operator.cluster.kube import Api, Object, configuration
from remotegpu_operator.cluster.leadership import LEASE_SECONDS, TRUST_SECONDS, Leadership, NotLeaderError
from remotegpu_operator.process import Process
from remotegpu_operator.settings import Settings

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/remotegpu-operator"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def leases(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> Kube:
    monkeypatch.setattr(leadership, "_RENEW_SECONDS", 0.02)
    return kube


async def acquired(candidate: Leadership, seconds: float = 10) -> None:
    await asyncio.wait_for(candidate.acquire(), seconds)


async def renewed(leases: Kube, version: str) -> None:
    for _ in range(1000):
        if leases.get(LEASE)["metadata"]["resourceVersion"] != version:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the holder does not renew")


def may_write(candidate: Leadership) -> bool:
    try:
        candidate.check()
    except NotLeaderError:
        return False
    return True


def test_two_leaders_never_may_write_at_the_same_time(leases: Kube) -> None:
    async def follow() -> None:
        async with Api(await configuration(leases.kubeconfig)) as api:
            clock = Clock()
            first = Leadership(api, SYSTEM, "first", clock=clock)
            second = Leadership(api, SYSTEM, "second", clock=clock)
            assert not may_write(first)
            await acquired(first)
            assert may_write(first)
            taking = asyncio.create_task(second.acquire())
            # The first process sleeps and does not renew the Lease while time passes.
            while not taking.done():
                await asyncio.sleep(0.05)
                assert not (may_write(first) and may_write(second))
                clock.now += 0.5
                assert clock.now < 1000 + 2 * LEASE_SECONDS, "the second takes over"
            await taking
            assert clock.now >= 1000 + LEASE_SECONDS
            assert may_write(second)
            assert not may_write(first)
            assert leases.get(LEASE)["spec"]["holderIdentity"] == "second"
            assert leases.get(LEASE)["spec"]["leaseTransitions"] == 2
            # It wakes up, detects the loss of the Lease by its own clock, and writes nothing.
            before = leases.get(LEASE)["metadata"]["resourceVersion"]
            await asyncio.wait_for(first.keep(), 10)
            await first.release()
            assert leases.get(LEASE)["metadata"]["resourceVersion"] == before

    asyncio.run(follow())


def test_a_holder_that_renews_keeps_it_and_one_that_releases_hands_it_over_at_once(leases: Kube) -> None:
    async def follow() -> None:
        async with Api(await configuration(leases.kubeconfig)) as api:
            clock = Clock()
            first = Leadership(api, SYSTEM, "first", clock=clock)
            second = Leadership(api, SYSTEM, "second", clock=clock)
            await acquired(first)
            keeping = asyncio.create_task(first.keep())
            taking = asyncio.create_task(second.acquire())
            for _ in range(30):
                version = leases.get(LEASE)["metadata"]["resourceVersion"]
                await renewed(leases, version)
                clock.now += TRUST_SECONDS / 4
                assert may_write(first)
            assert not taking.done()
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await first.release()
            await asyncio.wait_for(taking, 10)
            assert may_write(second)
            assert not may_write(first)

    asyncio.run(follow())


def test_a_lease_is_given_back_when_the_holder_is_stopped_in_a_renewal(leases: Kube) -> None:
    async def follow() -> None:
        async with Api(await configuration(leases.kubeconfig)) as api:
            first = Leadership(api, SYSTEM, "first")
            await acquired(first)
            written = asyncio.Event()
            replace = api.replace

            async def unheard(*arguments: Any) -> Object:
                """Writes the object, but never returns, as if the API server's answer were lost."""
                await replace(*arguments)
                written.set()
                await asyncio.Event().wait()
                raise AssertionError

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(api, "replace", unheard)
                keeping = asyncio.create_task(first.keep())
                await asyncio.wait_for(written.wait(), 10)
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
            await first.release()
            assert leases.get(LEASE)["spec"]["holderIdentity"] == ""
            assert not may_write(first)

    asyncio.run(follow())


def test_a_lease_that_somebody_took_is_not_taken_back(leases: Kube) -> None:
    async def follow() -> None:
        async with Api(await configuration(leases.kubeconfig)) as api:
            first = Leadership(api, SYSTEM, "first")
            await acquired(first)
            keeping = asyncio.create_task(first.keep())
            leases.merge(LEASE, {"spec": {"holderIdentity": "somebody"}})
            await asyncio.wait_for(keeping, 10)
            assert not may_write(first)
            assert leases.get(LEASE)["spec"]["holderIdentity"] == "somebody"

    asyncio.run(follow())


def test_the_process_of_a_pod_that_restarts_need_not_wait(leases: Kube) -> None:
    async def follow() -> None:
        async with Api(await configuration(leases.kubeconfig)) as api:
            await acquired(Leadership(api, SYSTEM, "operator-0"))
            await acquired(Leadership(api, SYSTEM, "operator-0"), LEASE_SECONDS / 2)

    asyncio.run(follow())


@pytest.fixture
def process(leases: Kube, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """A process of the operator, which is neither started nor run by kopf."""
    monkeypatch.setattr("remotegpu_operator.process.configuration", functools.partial(configuration, leases.kubeconfig))
    return Process(Settings(SYSTEM, "operator-0", "an image", "Always", folder / "token", http_port=free_port()))


def test_the_lease_is_renewed_while_the_work_takes_long(
    process: Process, leases: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def work(_: object) -> None:
        """Blocks its event loop until the Lease has been renewed by another loop."""
        first = leases.get(LEASE)["spec"]["renewTime"]
        until(lambda: leases.get(LEASE)["spec"]["renewTime"] != first, 10, "the Lease is renewed")
        seen.append(first)

    async def follow() -> None:
        await process.start()
        await process.stop.wait()
        await process.end()

    monkeypatch.setattr(process, "_work", work)
    asyncio.run(follow())
    assert seen
    assert process.status == 0
    assert leases.get(LEASE)["spec"]["holderIdentity"] == ""


def test_a_process_that_ends_while_it_takes_the_lease_gives_it_back(
    process: Process, leases: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = threading.Event()
    create = Api.create

    async def unheard(api: Api, *arguments: Any) -> Object:
        """Creates the Lease, but never returns, as if the API server's answer were lost."""
        await create(api, *arguments)
        written.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def follow() -> None:
        starting = asyncio.create_task(process.start())
        assert await asyncio.to_thread(written.wait, 20)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    monkeypatch.setattr(Api, "create", unheard)
    asyncio.run(follow())
    assert leases.get(LEASE)["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize(
    ("error", "said"), [(NotLeaderError("late"), "the Lease was lost"), (ValueError("ours"), "the operator failed")]
)
def test_work_that_the_lease_ran_out_for_is_no_failure_of_ours(
    process: Process,
    leases: Kube,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    said: str,
) -> None:
    """The renewal that was slow came after all, so the Lease is ours again, and the next one need not wait for it."""

    async def fail(_: object) -> None:
        raise ExceptionGroup("work", [ExceptionGroup("claims", [error])])

    async def follow() -> None:
        await process.start()
        await process.stop.wait()
        await process.end()

    monkeypatch.setattr(process, "_work", fail)
    asyncio.run(follow())
    assert process.status == 1
    assert leases.get(LEASE)["spec"]["holderIdentity"] == ""
    assert [each.getMessage().split(":")[0] for each in caplog.records if each.levelname == "ERROR"] == [said]
