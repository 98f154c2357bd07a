"""Tests of the operator's part in resizes of claims. The test sets the lease's size that a fake appliance reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.kubelab import CLAIMS, MIB, POOLS, Kube, Object, claim, node, operator, pool
from support.kubenodes import Appliance, Nodes
from support.system import until

from remotegpu.rpc import pb

pytestmark = pytest.mark.timeout(240)

MINE = CLAIMS.format("team")


@pytest.fixture
def appliance(server: ApiServer, kube: Kube, folder: Path) -> Iterator[Appliance]:
    """The fake appliance of a pool with one GPU of 1 GiB, and a running operator."""
    kube.namespace("team")
    kube("POST", "/api/v1/nodes", node("node-a", {"gpus": "yes"}))
    with Nodes(kube, subnet=16) as nodes, operator(server.kubeconfig, folder):
        kube("POST", POOLS, pool("default", software={"gpus": 1, "memory": 1024 * MIB}))
        until(lambda: state(kube.get(f"{POOLS}/default"))[0] == "Ready", 30, "the pool is ready")
        (it,) = nodes.appliances.values()
        yield it


def state(thing: Object) -> tuple[str, str]:
    status = thing.get("status") or {}
    return status.get("phase", ""), status.get("reason", "")


def make(kube: Kube, name: str, fraction: str) -> Object:
    kube("POST", MINE, claim(name, "default", fraction=fraction))
    return becomes(kube, name, "Allocated")


def becomes(kube: Kube, name: str, reason: str, phase: str = "Allocated") -> Object:
    until(lambda: state(kube.get(f"{MINE}/{name}")) == (phase, reason), 30, f"{name} is {phase}, {reason}")
    found: Object = kube.get(f"{MINE}/{name}")
    return found


def size(stored: Object) -> tuple[int, int]:
    (allocation,) = stored["status"]["allocations"]
    return allocation["memory"] // MIB, allocation["milli"]


def ask(kube: Kube, name: str, fraction: str) -> None:
    kube.merge(f"{MINE}/{name}", {"spec": {"fraction": fraction}})


def say(appliance: Appliance, stored: Object, mib: int, problem: str = "") -> None:
    """Sets the size of the claim's lease, in MiB, and the problem that the appliance reports."""
    (allocation,) = stored["status"]["allocations"]
    place = pb.Place(gpu=allocation["gpu"], leased_bytes=mib * MIB)
    appliance.leases = [pb.Lease(claim_uid=stored["metadata"]["uid"], places=[place], problem=problem)]


def test_a_share_grows_and_shrinks_when_its_appliance_has_done_it(kube: Kube, appliance: Appliance) -> None:
    stored = make(kube, "first", "0.25")
    say(appliance, stored, 256)
    ask(kube, "first", "0.75")
    resizing = becomes(kube, "first", "Resizing")
    assert size(resizing) == (256, 250)
    assert [each["memory"] for each in resizing["status"]["resize"]] == [768 * MIB]
    # The larger size is already reserved for the claim.
    kube("POST", MINE, claim("second", "default", fraction="0.5"))
    becomes(kube, "second", "WaitingForCapacity", "Pending")
    say(appliance, stored, 768)
    grown = becomes(kube, "first", "Allocated")
    assert (size(grown), "resize" in grown["status"]) == ((768, 750), False)
    ask(kube, "first", "0.5")
    assert size(becomes(kube, "first", "Resizing")) == (768, 750), "what it has not given back is not for others"
    assert state(kube.get(f"{MINE}/second"))[0] == "Pending"
    say(appliance, stored, 512)
    assert size(becomes(kube, "first", "Allocated")) == (512, 500)
    becomes(kube, "second", "Allocated")


def test_what_cannot_be_resized_stays_and_says_why(kube: Kube, appliance: Appliance) -> None:
    stored = make(kube, "first", "0.5")
    say(appliance, stored, 512)
    make(kube, "second", "0.25")
    ask(kube, "first", "0.9")
    refused = becomes(kube, "first", "NotResized")
    assert "NoRoom" in refused["status"]["message"] and size(refused) == (512, 500)
    ready = {each["type"]: each["status"] for each in refused["status"]["conditions"]}
    assert ready == {"Allocated": "True", "Ready": "True"}
    ask(kube, "first", "0.25")
    becomes(kube, "first", "Resizing")
    say(appliance, stored, 512, "InUse: its programs have 400.0 MiB of gpu 0")
    refused = becomes(kube, "first", "NotResized")
    assert "InUse" in refused["status"]["message"] and size(refused) == (512, 500)
    say(appliance, stored, 512)
    ask(kube, "first", "0.5")
    assert size(becomes(kube, "first", "Allocated")) == (512, 500)
