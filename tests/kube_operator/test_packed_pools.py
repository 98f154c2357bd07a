"""Tests of packing a pool with a real operator and API server. Fake appliances answer the calls that move leases."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.kubelab import CLAIMS, MIB, POOLS, Kube, Object, claim, node, operator, pool
from support.kubenodes import Appliance, Nodes
from support.system import REMOTEGPU, until

from remotegpu.rpc import pb

pytestmark = pytest.mark.timeout(240)

MINE = CLAIMS.format("team")
PLUGIN = str(Path(REMOTEGPU).with_name("kubectl-remotegpu"))
BUSY = 75


class Lab:
    """A pool of three appliances with one GPU of 1000 MiB each."""

    def __init__(self, server: ApiServer, kube: Kube, nodes: Nodes, folder: Path) -> None:
        self.server, self.kube, self.nodes, self.folder = server, kube, nodes, folder
        self.environment = os.environ | {"KUBECONFIG": str(server.kubeconfig)}

    def plugin(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [PLUGIN, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=self.environment)

    def names(self) -> list[str]:
        return sorted(name.removesuffix("-0") for name in self.nodes.appliances)

    def appliance(self, name: str) -> Appliance:
        return self.nodes.appliances[f"{name}-0"]

    def make(self, name: str, fraction: str, where: str, *, movable: bool = True) -> None:
        """Makes a claim on an appliance that it may leave afterwards."""
        self.kube("POST", MINE, claim(name, "default", fraction=fraction, appliance=where, movable=movable))
        until(lambda: self.status(name).get("phase") == "Allocated", 30, f"{name} has its share")
        self.kube.merge(f"{MINE}/{name}", {"spec": {"appliance": None}})

    def status(self, name: str) -> Object:
        return dict(self.kube.get(f"{MINE}/{name}").get("status") or {})

    def place(self, name: str) -> str:
        (allocation,) = self.status(name)["allocations"]
        return str(allocation["appliance"])

    def pool(self) -> Object:
        return dict(self.kube.get(f"{POOLS}/default")["status"])

    def packed(self) -> Object:
        return dict(self.pool().get("pack") or {})

    def ask(self, request: str) -> None:
        self.kube.merge(f"{POOLS}/default", {"metadata": {"annotations": {"remotegpu.io/pack": request}}})

    def events(self, reason: str) -> list[str]:
        return [each["message"] for each in self.kube.items("/api/v1/events") if each["reason"] == reason]


@pytest.fixture
def lab(server: ApiServer, kube: Kube, folder: Path) -> Iterator[Lab]:
    kube.namespace("team")
    for name in ("node-a", "node-b", "node-c"):
        kube("POST", "/api/v1/nodes", node(name, {"gpus": "yes"}))
    with Nodes(kube, subnet=41) as nodes, operator(server.kubeconfig, folder):
        spec = {"gpus": 1, "memory": 1000 * MIB}
        kube("POST", POOLS, pool("default", software=spec, pack={"leaveAlone": "0s", "movesPerHour": 4}))
        lab = Lab(server, kube, nodes, folder)
        until(lambda: lab.pool().get("ready") == "3/3" and len(nodes.appliances) == 3, 60, "the pool is ready")
        yield lab


def moves(lab: Lab, name: str, why: str = "") -> None:
    lab.appliance(name).on_move = lambda _: why


def test_it_is_planned_then_carried_out_one_move_at_a_time(lab: Lab) -> None:
    first, second, third = lab.names()
    lab.make("one", "0.1", first)
    lab.make("two", "0.2", second)
    lab.make("fixed", "0.5", third, movable=False)
    told = lab.plugin("pack", "default", "--dry-run")
    assert told.returncode == 0, told.stderr
    assert "GPUs in use: 3 now, 1 after it" in told.stdout
    assert "team/fixed: spec.movable is not true" in told.stdout
    assert f"team/one {first} {third}" in " ".join(told.stdout.split())
    assert lab.packed()["phase"] == "Planned"
    assert [lab.place(name) for name in ("one", "two")] == [first, second], "nothing moved"

    under_way: list[str] = []
    most = [0]
    lock = threading.Lock()

    def move(request: pb.MoveLeaseRequest) -> str:
        with lock:
            under_way.append(request.lease_id)
            most[0] = max(most[0], len(under_way))
        status = lab.packed()
        with lock:
            under_way.remove(request.lease_id)
        # The move counts before it begins.
        return "" if len(status["recent"]) == sum("result" in each for each in status["moves"]) else "it does not count"

    for name in (first, second):
        lab.appliance(name).on_move = move
    done = lab.plugin("pack", "default")
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.splitlines()[-1] == "2 moved; GPUs in use: 1, and 3 before"
    assert {lab.place(name) for name in ("one", "two", "fixed")} == {third}
    assert most == [1]
    assert len(lab.packed()["recent"]) == 2
    (condition,) = [each for each in lab.pool()["conditions"] if each["type"] == "Packed"]
    assert (condition["status"], condition["reason"]) == ("True", "Done")
    until(lambda: len(lab.events("Packed")) == 1, 15, "an Event says that it is packed")
    assert len(lab.events("Packing")) == 2
    assert any("pool default is packed" in message for message in lab.events("Moving"))
    # The same annotation is no new request, and what moved just now has the time of its move.
    assert lab.status("one")["shareSince"] >= lab.packed()["started"]
    assert "no move empties a GPU" in lab.plugin("pack", "default").stdout


def test_a_move_that_fails_is_not_repeated_and_counts(lab: Lab) -> None:
    first, second, third = lab.names()
    lab.make("one", "0.1", first)
    lab.make("two", "0.2", second)
    lab.make("three", "0.6", third)
    moves(lab, first, "ModuleAddressesDiffer: a variable lies elsewhere")
    moves(lab, second)
    moves(lab, third)
    done = lab.plugin("pack", "default")
    assert done.returncode == BUSY
    assert f"team/one stays on {first}" in done.stdout
    assert "ModuleAddressesDiffer" in done.stdout
    # GPU of `one` stays in use, and the other two claims come there or together.
    assert lab.place("one") == first
    assert len({lab.place(name) for name in ("one", "two", "three")}) < 3
    status = lab.packed()
    assert [each["result"] for each in status["moves"]].count("Failed") == 1
    assert len(status["recent"]) == len(status["moves"]) <= 4
    (condition,) = [each for each in lab.pool()["conditions"] if each["type"] == "Packed"]
    assert (condition["status"], condition["reason"]) == ("False", "MovesFailed")
    until(lambda: any("ModuleAddressesDiffer" in each for each in lab.events("NotPacked")), 15, "an Event says why")
    until(lambda: lab.status("one")["reason"] == "Allocated", 20, "the claim is not sent again")


def test_no_more_moves_than_an_hour_allows(lab: Lab) -> None:
    first, second, third = lab.names()
    for name in (first, second, third):
        moves(lab, name)
    lab.kube.merge(f"{POOLS}/default", {"spec": {"pack": {"movesPerHour": 1}}})
    lab.make("one", "0.1", first)
    lab.make("two", "0.2", second)
    lab.make("three", "0.6", third)
    assert "1 moved; GPUs in use: 2, and 3 before" in lab.plugin("pack", "default").stdout
    again = lab.plugin("pack", "default").stdout
    assert "no move empties a GPU" in again
    assert "takes more moves than are left" in again


def test_a_schedule_packs_and_leaves_what_is_new_alone(lab: Lab) -> None:
    first, second, _ = lab.names()
    for name in lab.names():
        moves(lab, name)
    lab.make("one", "0.1", first)
    lab.make("two", "0.5", second)
    lab.kube.merge(f"{POOLS}/default", {"spec": {"pack": {"every": "2s", "leaveAlone": "1h"}}})
    until(lambda: "a short time ago" in json.dumps(lab.packed()), 30, "it was looked at, and is left alone")
    assert not lab.packed()["moves"]
    # Hours that are not now.
    now = datetime.datetime.now(datetime.UTC)
    hours = {key: (now + datetime.timedelta(hours=after)).strftime("%H:%M") for key, after in (("from", 6), ("to", 8))}
    lab.kube.merge(f"{POOLS}/default", {"spec": {"pack": {**hours, "leaveAlone": "0s"}}})
    lab.ask("dry-run-1")
    until(lambda: lab.packed()["request"] == "dry-run-1", 30, "the operator has seen the hours")
    assert lab.place("one") == first
    lab.kube.merge(f"{POOLS}/default", {"spec": {"pack": {"from": None, "to": None}}})
    until(lambda: lab.place("one") == second, 30, "it is packed by the schedule")


def test_another_operator_goes_on(server: ApiServer, kube: Kube, folder: Path) -> None:
    """The operator ends during the first of two moves; the next one finds where the claim is, and makes the second."""
    kube.namespace("team")
    for name in ("node-a", "node-b", "node-c"):
        kube("POST", "/api/v1/nodes", node(name, {"gpus": "yes"}))
    with Nodes(kube, subnet=42) as nodes:
        asked, over = threading.Event(), threading.Event()
        with operator(server.kubeconfig, folder) as first_operator:
            spec = {"gpus": 1, "memory": 1000 * MIB}
            kube("POST", POOLS, pool("default", software=spec, pack={"leaveAlone": "0s"}))
            lab = Lab(server, kube, nodes, folder)
            until(lambda: lab.pool().get("ready") == "3/3" and len(nodes.appliances) == 3, 60, "the pool is ready")
            first, second, third = lab.names()
            lab.make("one", "0.1", first)
            lab.make("two", "0.2", second)
            lab.make("fixed", "0.5", third, movable=False)

            def move(_: pb.MoveLeaseRequest) -> str:
                asked.set()
                over.wait(60)
                return "nobody hears this"

            lab.appliance(first).on_move = move
            moves(lab, second)
            lab.ask("now-1")
            assert asked.wait(30)
            uid = kube.get(f"{MINE}/one")["metadata"]["uid"]
            first_operator.kill()
        lab.appliance(third).leases = [pb.Lease(claim_uid=uid)]
        (folder / "other").mkdir()
        with operator(server.kubeconfig, folder / "other", "operator-1"):
            until(lambda: lab.packed().get("phase") == "Done", 90, "the other operator goes on")
            assert {lab.place(name) for name in ("one", "two", "fixed")} == {third}
            assert [each["result"] for each in lab.packed()["moves"]] == ["Moved", "Moved"]
            assert len(lab.packed()["recent"]) == 2
        over.set()
