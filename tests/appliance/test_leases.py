"""Leases: given in order, never more than there is, and returned as soon as they have no holder."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from support.stand_in import StandIn, Tenant, all_back
from support.system import until

from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.api.quantities import Ask
from remotegpu.rpc import pb

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _nothing_left(appliance: StandIn) -> Iterator[None]:
    with all_back(appliance):
        yield


def test_a_lease_is_a_part_of_a_gpu_with_an_identity_of_its_own(appliance: StandIn) -> None:
    first, second = appliance.lease(Ask(milli_per_gpu=250)), appliance.lease(Ask(milli_per_gpu=250))
    (one,), (two,) = first.granted.devices, second.granted.devices
    assert one.memory_bytes == two.memory_bytes == GIB // 4
    assert one.gpu_uuid == two.gpu_uuid in {gpu.uuid for gpu in appliance.gpus}
    assert one.uuid != two.uuid
    assert (one.pci_domain, one.pci_bus, one.pci_device) != (two.pci_domain, two.pci_bus, two.pci_device)
    assert one.attributes[1] == 1024
    assert appliance.leased == GIB // 2
    first.close()
    second.close()


def test_several_gpus_are_distinct(appliance: StandIn) -> None:
    lease = appliance.lease(Ask(count=2, milli_per_gpu=1000))
    assert {device.gpu_uuid for device in lease.granted.devices} == {gpu.uuid for gpu in appliance.gpus}
    lease.close()


def test_hello_shows_the_lease_to_its_holder_only(appliance: StandIn) -> None:
    lease = appliance.lease(Ask(milli_per_gpu=100))
    stub, granted = appliance.client._stub, lease.granted
    request = pb.HelloRequest(
        versions=appliance.client.versions, lease_id=granted.lease_id, lease_secret=granted.lease_secret
    )
    assert list(stub.Hello(request).devices) == list(granted.devices)
    request.lease_secret = "00" * 32
    with pytest.raises(grpc.RpcError) as refused:
        stub.Hello(request)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    lease.close()


def test_what_is_not_free_is_refused_with_the_reason(appliance: StandIn) -> None:
    lease = appliance.lease(Ask(count=2, milli_per_gpu=800))
    with pytest.raises(ApplianceError, match=r"\b0\.5\b.*\b0\.20 \(204\.8 MiB\).*\bgpu 0\b") as caught:
        appliance.lease(Ask(milli_per_gpu=500))
    assert caught.value.failure is Failure.BUSY
    lease.close()


def test_closing_a_lease_is_answered_when_the_share_is_free(appliance: StandIn) -> None:
    for _ in range(20):
        lease = appliance.lease(Ask(count=2, milli_per_gpu=1000))
        lease.session().ask("memory 0")
        lease.close()
        assert appliance.leased == 0


def test_a_lease_ends_with_its_holding_connection(appliance: StandIn) -> None:
    lease = appliance.lease(Ask(milli_per_gpu=500))
    session = lease.session()
    session.ask("memory 0")
    lease.let_go()
    until(lambda: appliance.leased == 0, 5, "the share is back")
    assert "its holder is gone" in session.rest()


def test_a_lease_that_nobody_holds_ends(appliance: StandIn) -> None:
    appliance.lease(Ask(milli_per_gpu=500), hold=False)
    assert appliance.leased == GIB // 2
    until(lambda: appliance.leased == 0, 15, "the lease has expired")


def waiting(appliance: StandIn, ask: Ask, order: list[str], name: str) -> threading.Thread:
    """Somebody who waits for a share, notes that it came, and gives it back. Returns when the request has its place."""
    queued = threading.Event()

    def wait() -> None:
        with appliance.client.open_lease(ask, name, wait=True) as events:
            for event in events:
                queued.set()
                if event.HasField("granted"):
                    order.append(name)
                    Tenant(appliance, event.granted, hold=True).close()

    thread = threading.Thread(target=wait)
    thread.start()
    assert queued.wait(20)
    return thread


def test_waiting_requests_are_served_in_order(appliance: StandIn) -> None:
    holder = appliance.lease(Ask(count=2, milli_per_gpu=900))
    order: list[str] = []
    threads = []
    for name, milli in (("large", 1000), ("small", 100), ("half", 500)):
        threads.append(waiting(appliance, Ask(count=2, milli_per_gpu=milli), order, name))
    assert order == [], "0.1 of each is free, but the large request was first"
    holder.close()
    for thread in threads:
        thread.join(20)
    assert order[0] == "large"
    assert sorted(order[1:]) == ["half", "small"], "they fit together, so their threads may report in either order"


def test_a_waiting_client_hears_why_and_how_long(appliance: StandIn) -> None:
    holder = appliance.lease(Ask(count=2, milli_per_gpu=900))
    with appliance.client.open_lease(Ask(milli_per_gpu=500), "test", wait=True) as events:
        seen = [next(events).waiting for _ in range(3)]
    assert all("0.5 of a GPU is not free" in waiting.reason for waiting in seen)
    assert seen[0].seconds < seen[1].seconds < seen[2].seconds
    holder.close()


def test_who_gives_up_waiting_is_forgotten(appliance: StandIn) -> None:
    holder = appliance.lease(Ask(count=2, milli_per_gpu=900))
    with appliance.client.open_lease(Ask(count=2, milli_per_gpu=1000), "gives up", wait=True) as events:
        next(events)
    small = until(lambda: try_lease(appliance, Ask(milli_per_gpu=100)), 5, "nobody is ahead any more")
    small.close()
    holder.close()


def try_lease(appliance: StandIn, ask: Ask) -> Tenant | None:
    try:
        return appliance.lease(ask)
    except ApplianceError:
        return None


def test_fifty_at_once_never_get_more_than_there_is(appliance: StandIn) -> None:
    order: list[str] = []
    threads = [waiting(appliance, Ask(milli_per_gpu=300), order, str(number)) for number in range(50)]
    while any(thread.is_alive() for thread in threads):
        # Asking without a pause would keep the fifty from their answers.
        threads[-1].join(0.02)
        assert all(gpu.leased_bytes <= gpu.shareable_bytes for gpu in appliance.gpus)
    assert sorted(order, key=int) == [str(number) for number in range(50)]


@pytest.mark.parametrize("count", [0, 3])
def test_senseless_or_impossible_counts(appliance: StandIn, count: int) -> None:
    with pytest.raises(ApplianceError) as refused:
        appliance.lease(Ask(count=count))
    assert refused.value.failure is (Failure.INVALID if count == 0 else Failure.BUSY)
