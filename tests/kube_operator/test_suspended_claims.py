"""Tests of the operator's part in `spec.suspend`. The test sets the lease's state that a fake appliance reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.kubelab import CLAIMS, MIB, POOLS, Kube, Object, claim, node, operator, pool
from support.kubenodes import Appliance, Nodes
from support.system import until

from remotegpu.rpc import pb

MINE = CLAIMS.format("team")
KEPT = 3 * MIB


@pytest.fixture
def appliance(server: ApiServer, kube: Kube, folder: Path) -> Iterator[Appliance]:
    """The fake appliance of a pool with one GPU of 1 GiB, and a running operator."""
    kube.namespace("team")
    kube("POST", "/api/v1/nodes", node("node-a", {"gpus": "yes"}))
    with Nodes(kube, subnet=12) as nodes, operator(server.kubeconfig, folder):
        kube("POST", POOLS, pool("default", software={"gpus": 1, "memory": 1024 * MIB}))
        until(lambda: phase_of(kube.get(f"{POOLS}/default")) == "Ready", 30, "the pool is ready")
        (it,) = nodes.appliances.values()
        yield it


def phase_of(thing: Object) -> str:
    return str((thing.get("status") or {}).get("phase"))


def make(kube: Kube, name: str, fraction: str, **spec: object) -> Object:
    return kube("POST", MINE, claim(name, "default", fraction=fraction, **spec))


def becomes(kube: Kube, name: str, phase: str, reason: str) -> Object:
    def now() -> tuple[str, str]:
        status = kube.get(f"{MINE}/{name}").get("status") or {}
        return status.get("phase", ""), status.get("reason", "")

    until(lambda: now() == (phase, reason), 15, f"{name} is {phase}, {reason}")
    found: Object = kube.get(f"{MINE}/{name}")
    return found


def suspend(kube: Kube, name: str, *, on: bool = True) -> None:
    kube.merge(f"{MINE}/{name}", {"spec": {"suspend": on}})


def say(appliance: Appliance, stored: Object, *, kept: int = KEPT, problem: str = "") -> None:
    """Sets the report of the claim's lease: suspended with `kept` bytes in the driver, or with a problem."""
    (allocation,) = stored["status"]["allocations"]
    lease = pb.Lease(claim_uid=stored["metadata"]["uid"], problem=problem)
    if not problem:
        lease.suspended = "by a test"
        lease.places.append(pb.Place(gpu=allocation["gpu"], leased_bytes=kept))
    appliance.leases = [lease]


def test_a_suspended_claims_share_is_for_others(kube: Kube, appliance: Appliance) -> None:
    make(kube, "first", "0.75")
    stored = becomes(kube, "first", "Allocated", "Allocated")
    (whole,) = stored["status"]["allocations"]
    make(kube, "second", "0.5")
    becomes(kube, "second", "Pending", "WaitingForCapacity")
    suspend(kube, "first")
    becomes(kube, "first", "Allocated", "Suspending")
    assert phase_of(kube.get(f"{MINE}/second")) == "Pending"
    say(appliance, stored)
    status = becomes(kube, "first", "Suspended", "ByUser")["status"]
    assert status["allocations"] == [{**whole, "memory": KEPT, "milli": 0}]
    assert (status["milli"], status["memory"]) == (0, "3Mi")
    becomes(kube, "second", "Allocated", "Allocated")
    # The resumed claim waits for its own GPU, and is served before later claims.
    suspend(kube, "first", on=False)
    message = becomes(kube, "first", "Suspended", "WaitingForCapacity")["status"]["message"]
    assert "where its programs wait" in message
    make(kube, "third", "0.5")
    becomes(kube, "third", "Pending", "WaitingForCapacity")
    kube("DELETE", f"{MINE}/second")
    status = becomes(kube, "first", "Allocated", "Allocated")["status"]
    assert status["allocations"] == [whole]
    assert phase_of(kube.get(f"{MINE}/third")) == "Pending"
    kube("DELETE", f"{MINE}/first")
    becomes(kube, "third", "Allocated", "Allocated")


def test_what_cannot_be_suspended_keeps_its_share_and_says_why(kube: Kube, appliance: Appliance) -> None:
    make(kube, "first", "0.75")
    stored = becomes(kube, "first", "Allocated", "Allocated")
    suspend(kube, "first")
    say(appliance, stored, problem="KernelStillRuns: what the GPU was given is not complete after 60 s")
    status = becomes(kube, "first", "Allocated", "NotSuspended")["status"]
    assert "KernelStillRuns" in status["message"]
    assert status["allocations"] == stored["status"]["allocations"]
    suspend(kube, "first", on=False)
    appliance.leases = []
    becomes(kube, "first", "Allocated", "Allocated")


def test_another_operator_goes_on_with_what_is_suspended(
    server: ApiServer, kube: Kube, appliance: Appliance, folder: Path
) -> None:
    make(kube, "first", "0.75")
    stored = becomes(kube, "first", "Allocated", "Allocated")
    suspend(kube, "first")
    say(appliance, stored)
    becomes(kube, "first", "Suspended", "ByUser")
    make(kube, "second", "0.9")
    becomes(kube, "second", "Allocated", "Allocated")
    (folder / "other").mkdir()
    with operator(server.kubeconfig, folder / "other", "operator-1"):
        kube("DELETE", f"{MINE}/second")
        suspend(kube, "first", on=False)
        becomes(kube, "first", "Allocated", "Allocated")


def test_a_suspended_claim_is_deleted(kube: Kube, appliance: Appliance) -> None:
    make(kube, "first", "0.75")
    say(appliance, becomes(kube, "first", "Allocated", "Allocated"))
    suspend(kube, "first")
    becomes(kube, "first", "Suspended", "ByUser")
    kube("DELETE", f"{MINE}/first")
    make(kube, "second", "1")
    becomes(kube, "second", "Allocated", "Allocated")
