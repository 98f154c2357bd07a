"""Tests of pods with another scheduling gate such as Kueue's, with a real operator, which removes its gate last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.kubelab import CLAIMS, GATE, MIB, POOLS, SESSION, Kube, Object, claim, gated_pod, node, operator, pool
from support.kubenodes import Nodes
from support.system import until

from remotegpu.api.claims import pod_claim_name
from remotegpu.cli.cluster.objects import Cluster
from remotegpu.cli.cluster.why import of_pod

PODS = "/api/v1/namespaces/queues/pods"
EVENTS = "/api/v1/namespaces/queues/events"
MINE = CLAIMS.format("queues")
KUEUE = "kueue.x-k8s.io/admission"


@pytest.fixture
def cluster(server: ApiServer, kube: Kube, folder: Path) -> Iterator[Cluster]:
    """A pool with one GPU, and an operator."""
    kube.namespace("queues")
    kube("POST", "/api/v1/nodes", node("node-a"))
    with Nodes(kube, subnet=37), operator(server.kubeconfig, folder):
        kube("POST", POOLS, pool("default", software={"gpus": 1, "memory": 1024 * MIB}))
        until(lambda: phase(kube.get(f"{POOLS}/default")) == "Ready", 30, "the pool is ready")
        yield Cluster(Path(server.kubeconfig))


def phase(thing: Object) -> str:
    return str(thing.get("status", {}).get("phase", ""))


def queued(kube: Kube, name: str, milli: int = 0, **annotations: str) -> Object:
    """Creates a pod with our gate and Kueue's, as after both webhooks."""
    body = gated_pod(name, "default", milli, **annotations)
    body["spec"]["schedulingGates"].append({"name": KUEUE})
    return kube("POST", PODS, body)


def gates(kube: Kube, name: str) -> list[str]:
    return [gate["name"] for gate in kube.get(f"{PODS}/{name}")["spec"].get("schedulingGates") or ()]


def admit(kube: Kube, name: str) -> None:
    """Removes Kueue's gate, as Kueue does when its quota allows the pod."""
    kube.merge(f"{PODS}/{name}", {"spec": {"schedulingGates": [{"name": GATE}]}})


def is_told(kube: Kube, name: str) -> None:
    def told() -> bool:
        found = [each for each in kube.items(EVENTS) if each["involvedObject"]["name"] == name]
        return any(each["reason"] == "WaitingForOtherGate" and KUEUE in each["message"] for each in found)

    until(told, 20, f"{name} is told for what it waits")


def is_let_go(kube: Kube, name: str) -> None:
    until(lambda: gates(kube, name) == [], 20, f"{name} is let go")


def test_a_queued_pod_holds_nothing_and_gets_its_share_when_it_is_admitted(kube: Kube, cluster: Cluster) -> None:
    made = queued(kube, "queued", 750)
    is_told(kube, "queued")
    said = of_pod(cluster, "queues", "queued")
    assert isinstance(said, str) and KUEUE in said
    # A later pod gets the free GPU.
    kube("POST", PODS, gated_pod("later", "default", 750))
    is_let_go(kube, "later")
    assert [each["spec"]["pod"]["name"] for each in kube.items(MINE)] == ["later"]
    assert gates(kube, "queued") == [GATE, KUEUE]

    admit(kube, "queued")
    own = f"{MINE}/{pod_claim_name('queued', made['metadata']['uid'])}"
    until(lambda: phase(kube.find(own) or {}) == "Pending", 20, "it has a claim, which waits for the other's")
    kube("DELETE", f"{PODS}/later", {"gracePeriodSeconds": 0})
    is_let_go(kube, "queued")
    assert phase(kube.get(own)) == "Allocated"


def test_a_claim_made_by_hand_is_the_queued_pods_when_it_is_admitted(kube: Kube, cluster: Cluster) -> None:
    kube("POST", MINE, claim("mine", "default", fraction="0.5"))
    until(lambda: phase(kube.get(f"{MINE}/mine")) == "Allocated", 20, "the claim has its share by itself")
    queued(kube, "user", claim="mine")
    is_told(kube, "user")
    assert gates(kube, "user") == [GATE, KUEUE]
    admit(kube, "user")
    is_let_go(kube, "user")
    assert SESSION in kube.get(f"{PODS}/user")["metadata"]["annotations"]


def test_a_claim_that_a_queued_pod_has_already_is_kept(kube: Kube, cluster: Cluster) -> None:
    """An older release ignored other gates, so such a pod may run already. It keeps its share."""
    made = queued(kube, "older", 500)
    is_told(kube, "older")
    reference = {"name": "older", "uid": made["metadata"]["uid"]}
    name = pod_claim_name("older", reference["uid"])
    kube("POST", MINE, claim(name, "default", fraction="0.5", pod=reference))
    until(lambda: gates(kube, "older") == [KUEUE], 20, "our gate is gone, and the other one not")
    assert phase(kube.get(f"{MINE}/{name}")) == "Allocated"
