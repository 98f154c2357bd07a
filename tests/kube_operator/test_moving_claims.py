"""Tests of the operator's part in moves of claims between appliances. Fake appliances report the state of the lease."""

from __future__ import annotations

import contextlib
import threading
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


class Two:
    """The two fake appliances of a pool with a GPU of 1 GiB on each of two nodes."""

    def __init__(self, kube: Kube, nodes: Nodes) -> None:
        self._kube, self._nodes = kube, nodes

    def __getitem__(self, name: str) -> Appliance:
        return self._nodes.appliances[f"{name}-0"]

    def other(self, name: str) -> Appliance:
        (it,) = [each for each in self._nodes.appliances.values() if each.name != name]
        return it

    def arrives(self, name: str, stored: Object, *, arriving: bool = False) -> None:
        """Makes this appliance report the claim's lease."""
        self[name].leases = [pb.Lease(claim_uid=stored["metadata"]["uid"], arriving=arriving)]


@pytest.fixture
def two(server: ApiServer, kube: Kube, folder: Path) -> Iterator[Two]:
    kube.namespace("team")
    for name in ("node-a", "node-b"):
        kube("POST", "/api/v1/nodes", node(name, {"gpus": "yes"}))
    with Nodes(kube, subnet=14) as nodes, operator(server.kubeconfig, folder):
        kube("POST", POOLS, pool("default", software={"gpus": 1, "memory": 1024 * MIB}))
        until(
            lambda: state(kube.get(f"{POOLS}/default"))[0] == "Ready" and len(nodes.appliances) == 2, 30, "it is ready"
        )
        yield Two(kube, nodes)


def state(thing: Object) -> tuple[str, str]:
    status = thing.get("status") or {}
    return status.get("phase", ""), status.get("reason", "")


def make(kube: Kube, name: str, fraction: str, **spec: object) -> Object:
    kube("POST", MINE, claim(name, "default", fraction=fraction, **spec))
    return becomes(kube, name, "Allocated")


def becomes(kube: Kube, name: str, reason: str, *, phase: str = "Allocated") -> Object:
    wanted = (phase, reason)
    until(lambda: state(kube.get(f"{MINE}/{name}")) == wanted, 30, f"{name} is {wanted}")
    found: Object = kube.get(f"{MINE}/{name}")
    return found


def place(stored: Object) -> str:
    (allocation,) = stored["status"]["allocations"]
    return str(allocation["appliance"])


def send(kube: Kube, name: str, appliance: str | None) -> None:
    kube.merge(f"{MINE}/{name}", {"spec": {"appliance": appliance}})


def test_both_appliances_keep_room_until_the_claim_has_moved(kube: Kube, two: Two) -> None:
    stored = make(kube, "first", "0.75")
    here, there = two[place(stored)], two.other(place(stored))
    asked, may_end = threading.Event(), threading.Event()

    def move(request: pb.MoveLeaseRequest) -> str:
        assert (request.lease_id, request.invitation) == (
            stored["metadata"]["uid"].replace("-", ""),
            f"by {there.name}",
        )
        assert request.server_name.startswith(there.name) and request.to == f"{there.address}:7070"
        asked.set()
        assert may_end.wait(30)
        return ""

    here.on_move = move
    send(kube, "first", there.name)
    moving = becomes(kube, "first", "Moving")
    assert asked.wait(30) and place(moving) == here.name
    assert [each["appliance"] for each in moving["status"]["move"]["to"]] == [there.name]
    ready = {each["type"]: each["status"] for each in moving["status"]["conditions"]}
    assert ready == {"Allocated": "True", "Ready": "True"}
    kube("POST", MINE, claim("second", "default", fraction="0.5"))
    until(lambda: state(kube.get(f"{MINE}/second")) == ("Pending", "WaitingForCapacity"), 15, "both GPUs are taken")
    may_end.set()
    moved = becomes(kube, "first", "Allocated")
    assert (place(moved), "move" in moved["status"]) == (there.name, False)
    assert moved["status"]["endpoints"] == [
        {
            "appliance": there.name,
            "endpoint": f"{there.address}:7070",
            "serverName": f"{there.name}.appliance.remotegpu.io",
        }
    ]
    assert moved["status"]["milli"] == stored["status"]["milli"]
    assert place(becomes(kube, "second", "Allocated")) == here.name


def test_what_does_not_move_stays_and_is_tried_again(kube: Kube, two: Two) -> None:
    stored = make(kube, "first", "0.75")
    here, there = two[place(stored)], two.other(place(stored))
    refusals = ["ModuleAddressesDiffer: a variable lies at 1 here and at 2 there"]
    here.on_move = lambda _: refusals.pop() if refusals else ""
    send(kube, "first", there.name)
    refused = becomes(kube, "first", "NotMoved")
    assert "ModuleAddressesDiffer" in refused["status"]["message"] and "move" not in refused["status"]
    assert refused["status"]["allocations"] == stored["status"]["allocations"]
    # The free GPU of the target is not reserved until the next attempt.
    make(kube, "second", "0.75")
    until(lambda: "NoRoom" in kube.get(f"{MINE}/first")["status"]["message"], 30, "it is tried again")
    kube("DELETE", f"{MINE}/second")
    until(lambda: place(kube.get(f"{MINE}/first")) == there.name, 40, "it moves after all")
    send(kube, "first", "appliance-of-nobody")
    assert "has no appliance" in becomes(kube, "first", "NotMoved")["status"]["message"]
    send(kube, "first", None)
    becomes(kube, "first", "Allocated")


def test_a_movable_claim_leaves_an_appliance_that_is_replaced(kube: Kube, two: Two) -> None:
    movable, other = make(kube, "movable", "0.75", movable=True), make(kube, "other", "0.2", placement="Spread")
    here, there = two[place(movable)], two.other(place(movable))
    assert place(other) == there.name
    here.on_move = lambda _: ""
    here.draining = True
    until(lambda: place(kube.get(f"{MINE}/movable")) == there.name, 30, "it leaves")
    there.draining = True
    until(lambda: "NoRoom" in becomes(kube, "movable", "NotMoved")["status"]["message"], 30, "it cannot go back yet")
    assert place(becomes(kube, "other", "Allocated")) == there.name, "nobody said that it may move"


def suspended(kube: Kube, here: Appliance, stored: Object) -> Object:
    """Suspends the claim on this appliance, and returns the stored claim."""
    kube.merge(f"{MINE}/{stored['metadata']['name']}", {"spec": {"suspend": True}})
    becomes(kube, stored["metadata"]["name"], "Suspending")
    (allocation,) = stored["status"]["allocations"]
    place = pb.Place(gpu=allocation["gpu"], leased_bytes=MIB)
    here.leases = [pb.Lease(claim_uid=stored["metadata"]["uid"], suspended="by a test", places=[place])]
    return becomes(kube, stored["metadata"]["name"], "ByUser", phase="Suspended")


def test_a_suspended_claim_moves_with_room_for_all_of_its_share(kube: Kube, two: Two) -> None:
    stored = make(kube, "first", "0.75", movable=True)
    here, there = two[place(stored)], two.other(place(stored))
    suspended(kube, here, stored)
    visitor = make(kube, "visitor", "0.5", appliance=here.name)
    other = make(kube, "other", "0.5", appliance=there.name)
    asked, may_end = threading.Event(), threading.Event()

    def move(_: pb.MoveLeaseRequest) -> str:
        asked.set()
        assert may_end.wait(30)
        return ""

    here.on_move = move
    here.draining = True
    refused = becomes(kube, "first", "NotMoved", phase="Suspended")["status"]
    assert "NoRoom" in refused["message"] and "768.0 MiB" in refused["message"], refused
    kube("DELETE", f"{MINE}/other")
    moving = becomes(kube, "first", "Moving", phase="Suspended")
    assert asked.wait(30)
    (to,) = moving["status"]["move"]["to"]
    assert (to["appliance"], to["milli"], to["memory"]) == (there.name, 750, 768 * MIB)
    ready = {each["type"]: each["status"] for each in moving["status"]["conditions"]}
    assert ready == {"Allocated": "False", "Ready": "False"}
    kube("POST", MINE, claim("late", "default", fraction="0.5", appliance=there.name))
    until(lambda: state(kube.get(f"{MINE}/late")) == ("Pending", "WaitingForCapacity"), 15, "it is kept there")
    may_end.set()
    # The claim counts as running at the target until its new appliance has suspended it, too.
    arrived = becomes(kube, "first", "Suspending")
    assert (place(arrived), arrived["status"]["milli"]) == (there.name, 750)
    assert place(becomes(kube, "visitor", "Allocated")) == place(visitor) != place(other)


def test_what_is_suspended_continues_on_an_appliance_that_is_replaced(kube: Kube, two: Two) -> None:
    stored = make(kube, "first", "0.75")
    here = two[place(stored)]
    suspended(kube, here, stored)
    here.draining = True
    until(lambda: "Draining" in str(kube.get(f"{POOLS}/default")["status"]), 20, "it is known to drain")
    kube.merge(f"{MINE}/first", {"spec": {"suspend": False}})
    assert place(becomes(kube, "first", "Allocated")) == here.name


def test_another_operator_finds_where_the_claim_is(server: ApiServer, kube: Kube, folder: Path) -> None:
    """The operator ends during a move. The next operator reads the result of the move from the appliances."""
    kube.namespace("team")
    for name in ("node-a", "node-b"):
        kube("POST", "/api/v1/nodes", node(name, {"gpus": "yes"}))
    with Nodes(kube, subnet=15) as nodes, contextlib.ExitStack() as until_then:
        until_then.enter_context(operator(server.kubeconfig, folder))
        kube("POST", POOLS, pool("default", software={"gpus": 1, "memory": 1024 * MIB}))
        until(
            lambda: state(kube.get(f"{POOLS}/default"))[0] == "Ready" and len(nodes.appliances) == 2, 30, "it is ready"
        )
        two = Two(kube, nodes)
        stored = make(kube, "first", "0.75")
        here, there = two[place(stored)], two.other(place(stored))
        asked, over = threading.Event(), threading.Event()
        times: list[pb.MoveLeaseRequest] = []

        def move(request: pb.MoveLeaseRequest) -> str:
            times.append(request)
            asked.set()
            over.wait(60)
            return "nobody hears this"

        here.on_move = move
        send(kube, "first", there.name)
        assert asked.wait(30)
        two.arrives(there.name, stored, arriving=True)
        until_then.close()
        (folder / "other").mkdir()
        with operator(server.kubeconfig, folder / "other", "operator-1"):
            calls = there.calls
            until(lambda: there.calls > calls + 3, 30, "the other operator looks")
            assert place(becomes(kube, "first", "Moving")) == here.name
            two.arrives(there.name, stored)
            until(lambda: place(kube.get(f"{MINE}/first")) == there.name, 30, "it is where its lease is")
            assert len(times) == 1
        over.set()


def test_an_appliance_without_room_for_sessions_gets_no_other_claim(kube: Kube, two: Two) -> None:
    stored = make(kube, "first", "0.25", movable=True)
    here = two[place(stored)]
    here.full = "12 of 1024 descriptors are free"

    def told() -> Object:
        (mine,) = [each for each in kube.get(f"{POOLS}/default")["status"]["appliances"] if each["name"] == here.name]
        return {name: mine[name] for name in ("phase", "reason", "message")}

    message = f"it takes no new claims: {here.full}"
    wanted = {"phase": "Ready", "reason": "NoRoomForSessions", "message": message}
    until(lambda: told() == wanted, 30, "its status says why")
    kube("POST", MINE, claim("second", "default", fraction="0.25", appliance=here.name))
    second = becomes(kube, "second", "WaitingForCapacity", phase="Pending")
    assert "no room for sessions" in second["status"]["message"]
    # Other claims get another appliance. A movable claim stays on the full appliance.
    assert place(make(kube, "third", "0.25")) != here.name
    assert place(becomes(kube, "first", "Allocated")) == here.name
    here.full = ""
    assert place(becomes(kube, "second", "Allocated")) == here.name
    until(lambda: told()["reason"] == "Ready", 30, "it takes new ones again")
