"""Tests of the time at which a deleted pod loses its share.

They use a table of pods, nodes and times, and then a real API server.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ApiServer
from support.kubelab import CLAIMS, GATE, MIB, POOLS, Kube, Object, Operator, claim, gated_pod, node, operator, pool
from support.kubenodes import Nodes
from support.system import until

from remotegpu_operator.builders import leaving
from remotegpu_operator.builders.leaving import Machine, machine_of, standing
from remotegpu_operator.claims.leaving import Leaving
from remotegpu_operator.claims.why import explain
from remotegpu_operator.cluster.cache import Cache
from remotegpu_operator.cluster.kube import NODES, ApiError, Resource
from remotegpu_operator.cluster.kube import PODS as PODS_KIND

HERE, GONE, OFF = Machine.THERE, Machine.GONE, Machine.OUT_OF_SERVICE
# The pod is deleted at 12:00:00 with a grace period of 600 s. The margin is 60 s.
DELETION = "2026-01-01T12:10:00Z"
DURING = datetime.datetime.fromisoformat("2026-01-01T12:00:30Z")
GRACE_OVER = datetime.datetime.fromisoformat("2026-01-01T12:10:59Z")
MARGIN_OVER = datetime.datetime.fromisoformat("2026-01-01T12:11:00Z")


def stored(
    phase: str = "Running", deletion: str | None = DELETION, on: str = "node-a", *finalizers: str, grace: int = 600
) -> Object:
    metadata: Object = {"name": "train", "namespace": "team", "uid": "u", "finalizers": list(finalizers)}
    if deletion is not None:
        metadata |= {"deletionTimestamp": deletion, "deletionGracePeriodSeconds": grace}
    return {"metadata": metadata, "spec": {"nodeName": on} if on else {}, "status": {"phase": phase}}


JOBS = "batch.kubernetes.io/job-tracking"


@pytest.mark.parametrize(
    ("pod", "machine", "now", "over"),
    [
        # A pod that was not deleted keeps its share until it has ended, in any state of its node.
        (stored(deletion=None), HERE, DURING, False),
        (stored(deletion=None), GONE, DURING, False),
        (stored(deletion=None), OFF, DURING, False),
        (stored("Pending", None), HERE, MARGIN_OVER, False),
        (stored("Pending", None, ""), HERE, MARGIN_OVER, False),
        (stored("Unknown", None), HERE, MARGIN_OVER, False),
        (stored("Succeeded", None), HERE, DURING, True),
        (stored("Failed", None), HERE, DURING, True),
        # A deletion, an eviction by a drain and a preemption look the same in the API server.
        (stored(), HERE, DURING, False),
        (stored("Pending"), HERE, DURING, False),
        (stored("Unknown"), HERE, DURING, False),
        (stored(), HERE, GRACE_OVER, False),
        (stored(), HERE, MARGIN_OVER, True),
        # The pod was never bound to a node, so no container of the pod ever ran.
        (stored("Pending", on=""), HERE, DURING, True),
        (stored("Pending", DELETION, "", JOBS), HERE, DURING, True),
        # The pod has ended, and the Job's finalizer keeps the object until the Job has counted the pod.
        (stored("Succeeded", DELETION, "node-a", JOBS), HERE, DURING, True),
        (stored("Failed", DELETION, "node-a", JOBS), HERE, DURING, True),
        (stored("Succeeded", None, "node-a", JOBS), HERE, DURING, True),
        # A finalizer neither extends the share beyond the margin nor ends it earlier.
        (stored("Running", DELETION, "node-a", JOBS), HERE, DURING, False),
        (stored("Running", DELETION, "node-a", JOBS), HERE, MARGIN_OVER, True),
        # A forced deletion, but a finalizer keeps the object: the container may still run until the kubelet kills it.
        (stored("Running", "2026-01-01T12:00:00Z", "node-a", JOBS, grace=0), HERE, DURING, False),
        (stored("Running", "2026-01-01T12:00:00Z", "node-a", JOBS, grace=0), HERE, GRACE_OVER, True),
        # No kubelet can report the end of the pod.
        (stored(), GONE, DURING, True),
        (stored("Pending"), GONE, DURING, True),
        (stored(), OFF, DURING, True),
        (stored("Unknown"), OFF, DURING, True),
    ],
)
def test_whether_a_pod_needs_its_share_no_more(
    pod: Object, machine: Machine, now: datetime.datetime, over: bool
) -> None:
    found = standing(pod, machine, now)
    assert found.over is over
    assert bool(found.why) is over
    still_ends = not over and "deletionTimestamp" in pod["metadata"]
    assert found.until == (leaving.latest_end(pod) if still_ends else None)


NOT_READY = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("found", "machine"),
    [
        (None, GONE),
        ({"spec": {}}, HERE),
        ({"spec": {"taints": None}}, HERE),
        # The node does not answer, but its containers may still run.
        ({"spec": {"taints": [NOT_READY]}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, HERE),
        ({"spec": {"taints": [NOT_READY, {"key": leaving.OUT_OF_SERVICE, "effect": "NoExecute"}]}}, OFF),
        ({"spec": {"taints": [{"key": leaving.OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoSchedule"}]}}, OFF),
    ],
)
def test_what_a_node_says(found: Object | None, machine: Machine) -> None:
    assert machine_of(found) is machine


class HasNodes:
    """A fake API server with the nodes `names`."""

    def __init__(self, *names: str) -> None:
        self.names = names

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        if name in self.names:
            return {"metadata": {"name": name}}
        raise ApiError(404, "NotFound", name)


def test_a_node_that_is_not_known_yet_is_asked_for() -> None:
    """The watch of pods may be ahead of the watch of nodes. A pod on a new node must not lose its share then."""
    pod = stored(deletion="2999-01-01T00:00:00Z")
    pod["metadata"]["resourceVersion"] = "1"
    api: Any = HasNodes("node-a")
    looks: list[tuple[str, float]] = []
    nodes = Cache(api, NODES, lambda *_: None)
    pods = Cache(api, PODS_KIND, lambda *_: None)
    pods.store(pod)
    found = Leaving(api, nodes, pods, lambda uid, seconds: looks.append((uid, seconds)))
    assert not found.over(pod)
    assert not asyncio.run(found.look(pod)).over
    ((uid, seconds),) = looks
    assert uid == "u"
    assert seconds > 1e9  # the next check is at the end of the margin
    api.names = ()
    assert not found.over(pod)  # the API server has not been asked again
    assert asyncio.run(found.look(pod)).over
    assert found.over(pod)
    # Only a change of the pod's own node queues a check.
    looks.clear()
    found.node_changed("node-b")
    assert not looks
    found.node_changed("node-a")
    assert looks == [("u", 0.0)]
    assert not found.over(pod)


def test_who_waits_for_a_pod_on_its_way_out_is_told() -> None:
    def of_pod(name: str, uid: str, phase: str) -> Object:
        place = {"appliance": "a", "node": "n", "gpu": "G", "model": "S", "memory": 1024 * MIB, "milli": 1000}
        allocated = {"reason": "Allocated", "allocations": [place]}
        status = {"phase": phase} | (allocated if phase == "Allocated" else {"reason": "WaitingForCapacity"})
        metadata = {
            "name": name,
            "namespace": "team",
            "uid": f"claim-{uid}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        return {"metadata": metadata, "spec": {"fraction": "1", "pod": {"name": name, "uid": uid}}, "status": status}

    gpu = {"uuid": "G", "model": "S", "memory": 1024 * MIB, "shareable": 1024 * MIB, "healthy": True}
    appliance = {"name": "a", "node": "n", "phase": "Ready", "address": "10.0.0.1:7070", "gpus": [gpu]}
    made = pool("default", software={"gpus": 1, "memory": "1Gi"})
    made |= {"metadata": {"name": "default", "uid": "p"}, "status": {"appliances": [appliance]}}
    objects = {
        "gpupools": [made],
        "gpuclaims": [of_pod("train", "u", "Allocated"), of_pod("next", "v", "Pending")],
        "resourcequotas": [],
        "priorityclasses": [],
        "pods": [stored()],
    }
    answer = explain("team", "next", objects, DURING)
    assert [(holder.claim, holder.ends_in_seconds) for holder in answer.holders] == [("team/train", 630)]
    assert answer.starts_in_seconds == 630
    said = "; pod train is being deleted, and keeps its share until it has ended, in 10m30s at most"
    assert answer.estimate.endswith(said)
    objects["pods"] = [stored(deletion=None)]
    answer = explain("team", "next", objects, DURING)
    assert answer.holders[0].ends_in_seconds > 630
    assert "deleted" not in answer.estimate


# Tests with a real API server.

TEAM = "/api/v1/namespaces/team"
PODS = f"{TEAM}/pods"
MINE = CLAIMS.format("team")


@pytest.fixture
def lab(server: ApiServer, kube: Kube, folder: Path) -> Iterator[Operator]:
    kube.namespace("team")
    kube("POST", "/api/v1/nodes", node("node-a", {"gpus": "yes"}))
    kube("POST", "/api/v1/nodes", node("node-b"))
    with Nodes(kube, subnet=41), operator(server.kubeconfig, folder) as running:
        made = pool("default", software={"gpus": 1, "memory": 1024 * MIB}, nodeSelector={"gpus": "yes"})
        kube("POST", POOLS, made)
        until(lambda: kube.get(f"{POOLS}/default").get("status", {}).get("phase") == "Ready", 30, "the pool is ready")
        yield running


def let_go(kube: Kube, name: str) -> bool:
    gates = kube.get(f"{PODS}/{name}")["spec"].get("schedulingGates") or []
    return all(gate["name"] != GATE for gate in gates)


def waits_with(kube: Kube, name: str) -> None:
    """Waits until the operator has written that the pod's claim waits for capacity."""

    def reason() -> str:
        made = kube.get(f"{PODS}/{name}")["metadata"]["uid"]
        found = kube.find(f"{MINE}/{name}-{made}") or {}
        return str((found.get("status") or {}).get("reason"))

    until(lambda: reason() == "WaitingForCapacity", 20, f"the claim of {name} waits")


def run_on(kube: Kube, name: str, on: str) -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": on}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    kube("POST", f"{PODS}/{name}/binding", binding)
    kube.merge(f"{PODS}/{name}/status", {"status": {"phase": "Running"}})


def make(kube: Kube, name: str, on: str = "", finalizers: tuple[str, ...] = (), **more: Any) -> None:
    made = gated_pod(name, "default", 1000, **more)
    made["spec"]["terminationGracePeriodSeconds"] = 600
    made["metadata"]["finalizers"] = list(finalizers)
    kube("POST", PODS, made)
    if on:
        until(lambda: let_go(kube, name), 20, f"{name} is let go")
        run_on(kube, name, on)


def delete(kube: Kube, name: str, seconds: int = 600) -> None:
    kube("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": seconds})


def the_operator_has_seen(kube: Kube, marker: str) -> None:
    """Waits until the operator has processed all earlier changes: creates a pod, and waits for its effect."""
    kube("POST", PODS, gated_pod(marker, "none-of-this-name", 100))

    def refused() -> bool:
        made = kube.get(f"{PODS}/{marker}")["metadata"]["uid"]
        found = kube.find(f"{MINE}/{marker}-{made}") or {}
        return str((found.get("status") or {}).get("reason")) == "NoSuchPool"

    until(refused, 20, "the operator has seen what came later")


@pytest.mark.timeout(120)
def test_a_deleted_pod_keeps_its_share_until_it_has_ended(kube: Kube, lab: Operator) -> None:
    kube("POST", PODS, gated_pod("never", "default", 1000))
    until(lambda: let_go(kube, "never"), 20, "never is let go")
    make(kube, "train")
    waits_with(kube, "train")
    delete(kube, "never")  # the pod has a share and is not bound to a node
    until(lambda: let_go(kube, "train"), 20, "train has what never had")
    run_on(kube, "train", "node-b")

    make(kube, "next")
    waits_with(kube, "next")
    delete(kube, "train")
    the_operator_has_seen(kube, "marker")
    assert not let_go(kube, "next")
    (held,) = [one for one in kube.items(MINE) if one["spec"]["pod"]["name"] == "train"]
    assert [one["name"] for one in held["status"]["consumers"]] == ["train"]
    # The kubelet reports the end of the pod before it removes the object.
    kube.merge(f"{PODS}/train/status", {"status": {"phase": "Succeeded"}})
    until(lambda: let_go(kube, "next"), 20, "next has what train had")
    assert "deletionTimestamp" in kube.get(f"{PODS}/train")["metadata"]


@pytest.mark.timeout(120)
def test_a_share_ends_where_nobody_says_that_its_pod_has_ended(kube: Kube, lab: Operator) -> None:
    """A forced deletion, the out-of-service taint, and a deleted node end a pod's use of its claim."""
    kube("POST", MINE, claim("mine", "default", fraction="0.5"))

    def consumers() -> list[str]:
        return [one["name"] for one in (kube.get(f"{MINE}/mine").get("status") or {}).get("consumers") or []]

    def user(name: str, on: str) -> None:
        made = gated_pod(name, "default", claim="mine")
        made["spec"]["terminationGracePeriodSeconds"] = 600
        kube("POST", PODS, made)
        until(lambda: let_go(kube, name), 20, f"{name} is let go")
        run_on(kube, name, on)

    user("forced", "node-a")
    user("taint", "node-b")
    assert sorted(consumers()) == ["forced", "taint"]
    delete(kube, "taint")
    the_operator_has_seen(kube, "marker")
    assert sorted(consumers()) == ["forced", "taint"]
    off = {"key": leaving.OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
    kube.merge("/api/v1/nodes/node-b", {"spec": {"taints": [off]}})
    until(lambda: consumers() == ["forced"], 20, "a pod on a node that is off has no share")
    delete(kube, "forced", 0)
    until(lambda: consumers() == [], 20, "a pod that was deleted by force has no share")

    user("gone", "node-a")
    kube("POST", "/api/v1/nodes", node("node-c"))
    user("lost", "node-c")
    delete(kube, "lost")
    the_operator_has_seen(kube, "second-marker")
    assert sorted(consumers()) == ["gone", "lost"]
    kube("DELETE", "/api/v1/nodes/node-c")
    until(lambda: consumers() == ["gone"], 20, "a pod whose node is gone has no share")


@pytest.mark.timeout(180)
def test_a_pod_that_never_ends_has_its_share_until_the_margin_is_over(kube: Kube, lab: Operator) -> None:
    """The pod's node exists but does not answer. The same for a pod whose label was removed."""
    make(kube, "silent", "node-b")
    make(kube, "next")
    waits_with(kube, "next")
    delete(kube, "silent", 1)
    stamp = datetime.datetime.fromisoformat(kube.get(f"{PODS}/silent")["metadata"]["deletionTimestamp"])
    until(lambda: let_go(kube, "next"), 90, "next has what silent had")
    assert datetime.datetime.now(datetime.UTC) >= stamp + leaving.MARGIN
    assert kube.get(f"{PODS}/silent")["status"]["phase"] == "Running"
