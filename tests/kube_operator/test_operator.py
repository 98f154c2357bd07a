"""Tests of the operator's process with a real API server.

The rest of the cluster is simulated, and the tests check the API server's objects.
"""

from __future__ import annotations

import base64
import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from support.apiserver import ApiServer
from support.kubelab import (
    CLAIMS,
    GATE,
    MIB,
    POOLS,
    SESSION,
    SYSTEM,
    Kube,
    Object,
    Operator,
    RefusedError,
    claim,
    gated_pod,
    node,
    operator,
    pool,
)
from support.kubenodes import Nodes
from support.system import until

TEAM = "/api/v1/namespaces/team"
MINE = CLAIMS.format("team")
SYSTEM_PODS = f"/api/v1/namespaces/{SYSTEM}/pods"
SETS = f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets"


@pytest.fixture
def nodes(kube: Kube) -> Iterator[Nodes]:
    kube.namespace("team")
    for name in ("node-a", "node-b"):
        kube("POST", "/api/v1/nodes", node(name, {"gpus": "yes"}))
    with Nodes(kube, subnet=11) as running:
        yield running


@pytest.fixture
def running(server: ApiServer, nodes: Nodes, folder: Path) -> Iterator[Operator]:
    with operator(server.kubeconfig, folder) as process:
        yield process


def status(thing: Object) -> Object:
    found: Object = thing.get("status") or {}
    return found


def pool_is(kube: Kube, phase: str, name: str = "default", seconds: float = 30) -> Object:
    until(lambda: status(kube.get(f"{POOLS}/{name}")).get("phase") == phase, seconds, f"pool {name} is {phase}")
    return kube.get(f"{POOLS}/{name}")


def make_pool(kube: Kube, name: str = "default", **spec: Any) -> Object:
    kube("POST", POOLS, pool(name, **{"software": {"gpus": 1, "memory": 1024 * MIB}, **spec}))
    return pool_is(kube, "Ready", name)


def make_pod(kube: Kube, name: str, milli: int = 0, pool_name: str = "default", **annotations: str) -> Object:
    return kube("POST", f"{TEAM}/pods", gated_pod(name, pool_name, milli, **annotations))


def claim_of(kube: Kube, pod: Object) -> Object | None:
    return kube.find(f"{MINE}/{pod['metadata']['name']}-{pod['metadata']['uid']}")


def gated(kube: Kube, name: str) -> bool:
    return any(gate["name"] == GATE for gate in kube.get(f"{TEAM}/pods/{name}")["spec"].get("schedulingGates") or [])


def lifted(kube: Kube, name: str, seconds: float = 20) -> Object:
    until(lambda: not gated(kube, name), seconds, f"pod {name} is let go")
    return kube.get(f"{TEAM}/pods/{name}")


def has(kube: Kube, name: str, phase: str, reason: str, seconds: float = 20) -> Object:
    def reached() -> bool:
        now = status(kube.find(f"{MINE}/{name}") or {})
        return (now.get("phase"), now.get("reason")) == (phase, reason)

    until(reached, seconds, f"claim {name} is {phase}/{reason}")
    return kube.get(f"{MINE}/{name}")


def reasons(kube: Kube, name: str) -> set[str]:
    found = kube.items(f"{TEAM}/events")
    return {event["reason"] for event in found if event["involvedObject"]["name"] == name}


def set_pod(kube: Kube, name: str, **new: Any) -> None:
    kube.merge(f"{TEAM}/pods/{name}/status", {"status": new})


def delete_pod(kube: Kube, name: str) -> None:
    kube("DELETE", f"{TEAM}/pods/{name}", {"gracePeriodSeconds": 0})


def test_a_pod_gets_its_share_and_learns_where_it_is(kube: Kube, running: Operator, nodes: Nodes) -> None:
    make_pool(kube)
    made = make_pod(kube, "train", 250)
    pod = lifted(kube, "train")
    found = claim_of(kube, made)
    assert found is not None
    assert found["spec"]["fraction"] == "0.25"
    # The claim has no owner: the garbage collector would delete it before the end of the pod.
    assert "ownerReferences" not in found["metadata"]
    assert found["spec"]["pod"] == {"name": "train", "uid": made["metadata"]["uid"]}
    (allocation,) = found["status"]["allocations"]
    assert (allocation["memory"], allocation["milli"]) == (256 * MIB, 250)
    assert found["status"]["consumers"] == [{"name": "train", "uid": made["metadata"]["uid"]}]
    appliance = nodes.appliances[f"{allocation['appliance']}-0"]
    session = json.loads(pod["metadata"]["annotations"][SESSION])
    assert session["claim"] == {"namespace": "team", "name": found["metadata"]["name"], "uid": found["metadata"]["uid"]}
    assert session["appliances"] == [
        {
            "endpoint": f"{appliance.address}:7070",
            "server_name": f"{allocation['appliance']}.appliance.remotegpu.io",
        }
    ]
    authority = kube.get(f"/api/v1/namespaces/{SYSTEM}/secrets/remotegpu-ca")["data"]["ca.crt"]
    assert base64.b64decode(authority).decode().strip() in session["ca"]
    until(lambda: reasons(kube, "train") == {"Allocated"}, 10, "the pod's Event")
    until(lambda: reasons(kube, found["metadata"]["name"]) == {"Allocated"}, 10, "the claim's Event")
    assert not kube.get(f"{TEAM}/pods/train")["metadata"].get("finalizers")
    assert not found["metadata"].get("finalizers")


def test_the_fifth_pod_waits_with_a_reason_and_runs_when_a_neighbour_ends(kube: Kube, running: Operator) -> None:
    make_pool(kube, nodeSelector={"kubernetes.io/hostname": "node-a"})
    made = {name: make_pod(kube, name, 250) for name in ("p1", "p2", "p3", "p4")}
    for name in made:
        lifted(kube, name)
    fifth = make_pod(kube, "p5", 250)
    has(kube, f"p5-{fifth['metadata']['uid']}", "Pending", "WaitingForCapacity")
    until(lambda: "WaitingForCapacity" in reasons(kube, "p5"), 10, "the reason at the pod")
    assert gated(kube, "p5")
    until(lambda: status(kube.get(f"{POOLS}/default"))["free"]["milli"] == 0, 10, "the pool says it is full")
    # A completed pod may still exist, as for a Job, but has no share.
    set_pod(kube, "p2", phase="Succeeded")
    lifted(kube, "p5")
    assert claim_of(kube, made["p2"]) is None
    for name in ("p1", "p3"):
        delete_pod(kube, name)
    set_pod(kube, "p4", phase="Failed")
    until(lambda: len(kube.items(MINE)) == 1, 10, "only the fifth has a claim")
    until(lambda: status(kube.get(f"{POOLS}/default"))["free"]["milli"] == 750, 10, "the pool says what is free")


def test_several_gpus_and_impossible_wishes(kube: Kube, running: Operator) -> None:
    make_pool(kube)
    both = make_pod(kube, "both", 2000)
    lifted(kube, "both")
    found = claim_of(kube, both)
    assert found is not None
    assert len({each["appliance"] for each in found["status"]["allocations"]}) == 2
    assert len(found["status"]["endpoints"]) == 2
    for name, body, reason in (
        ("elsewhere", claim("elsewhere", "nowhere", fraction="0.5"), "NoSuchPool"),
        ("huge", claim("huge", "default", memory="64Gi"), "TooLarge"),
        ("model", claim("model", "default", fraction="0.5", model="H100"), "NoMatchingGPU"),
    ):
        kube("POST", MINE, body)
        has(kube, name, "Pending", reason)
    make_pod(kube, "nothing", 0, memory="nonsense")
    until(lambda: "InvalidShare" in reasons(kube, "nothing"), 10, "the pod is told what is wrong")
    make_pool(kube, "nowhere", nodeSelector={"kubernetes.io/hostname": "node-a"})
    has(kube, "elsewhere", "Allocated", "Allocated")


def test_a_pod_whose_claim_is_refused_says_so_and_gets_it_later(kube: Kube, running: Operator) -> None:
    make_pool(kube)
    hard = {"count/gpuclaims.remotegpu.io": "0"}
    quotas = f"{TEAM}/resourcequotas"
    kube("POST", quotas, {"metadata": {"name": "none"}, "spec": {"hard": hard}})
    # The test writes the status, because no quota controller runs.
    kube.merge(f"{quotas}/none/status", {"status": {"hard": hard, "used": hard}})
    make_pod(kube, "many", 250)
    until(lambda: "ClaimRefused" in reasons(kube, "many"), 20, "the pod is told that it can have no claim")
    kube("DELETE", f"{quotas}/none")
    lifted(kube, "many")


def test_a_pod_whose_gate_is_refused_says_so_and_starts_later(kube: Kube, running: Operator) -> None:
    """A policy refuses updates of pods, as ours does where another webhook changes the pod in the operator's update."""
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["UPDATE"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "!object.metadata.name.startsWith('held')", "message": "not this one"}],
    }
    make_pool(kube)
    stranger = {"containers": [{"name": "main", "image": "none"}]}
    kube("POST", f"{TEAM}/pods", {"metadata": {"name": "held-too"}, "spec": stranger})
    kube("POST", policies, {"metadata": {"name": "held"}, "spec": spec})
    binding = {"policyName": "held", "validationActions": ["Deny"]}
    kube("POST", f"{policies[:-3]}ybindings", {"metadata": {"name": "held"}, "spec": binding})
    try:
        until(lambda: is_refused(kube, f"{TEAM}/pods/held-too"), 30, "the policy is in force")
        make_pod(kube, "held", 250)
        until(lambda: "GateRefused" in reasons(kube, "held"), 20, "the pod is told what holds its gate")
    finally:
        kube("DELETE", f"{policies[:-3]}ybindings/held")
        kube("DELETE", f"{policies}/held")
    lifted(kube, "held")


def is_refused(kube: Kube, path: str) -> bool:
    try:
        kube.merge(f"{path}?dryRun=All", {"metadata": {"annotations": {"a": "b"}}})
    except RefusedError:
        return True
    return False


def test_a_claim_has_the_priority_of_its_class(kube: Kube, running: Operator) -> None:
    make_pool(kube, nodeSelector={"kubernetes.io/hostname": "node-a"})
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    kube("POST", MINE, claim("holder", "default", fraction="1"))
    has(kube, "holder", "Allocated", "Allocated")
    for name, more in (
        ("a-number", {"priority": 50}),
        ("of-a-class", {"priorityClassName": "e2e-urgent"}),
        ("none", {}),
    ):
        kube("POST", MINE, claim(name, "default", fraction="1", **more))
        has(kube, name, "Pending", "WaitingForCapacity")
    until(lambda: "NoSuchPriorityClass" in reasons(kube, "of-a-class"), 10, "it is told that there is no such class")
    kube("POST", classes, {"metadata": {"name": "e2e-urgent"}, "value": 100})
    order = []
    for waiting in (3, 2, 1):
        until(lambda: len(kube.items(MINE)) == waiting + 1, 10, "the one before is gone")  # noqa: B023 (called at once)
        held = [each["metadata"]["name"] for each in kube.items(MINE) if each["status"]["phase"] == "Allocated"]
        order += held
        for name in held:
            kube("DELETE", f"{MINE}/{name}")
        until(lambda: any(status(each).get("phase") == "Allocated" for each in kube.items(MINE)), 10, "the next one")
    kube("DELETE", f"{classes}/e2e-urgent")
    assert order == ["holder", "of-a-class", "a-number"]


def test_a_claim_made_by_hand_is_kept_between_pods_and_shared_by_them(kube: Kube, running: Operator) -> None:
    make_pool(kube)
    make_pod(kube, "early", claim="mine")
    until(lambda: "NoSuchClaim" in reasons(kube, "early"), 10, "the pod is told that there is no claim")
    kube("POST", MINE, claim("mine", "default", memory="512Mi"))
    lifted(kube, "early")
    second = make_pod(kube, "second", claim="mine")
    lifted(kube, "second")
    consumers = [each["name"] for each in kube.get(f"{MINE}/mine")["status"]["consumers"]]
    assert consumers == ["early", "second"]
    set_pod(kube, "early", phase="Succeeded")
    until(lambda: [each["name"] for each in kube.get(f"{MINE}/mine")["status"]["consumers"]] == ["second"], 10, "left")
    delete_pod(kube, "second")
    until(lambda: kube.get(f"{MINE}/mine")["status"]["consumers"] == [], 10, "nobody uses the claim")
    assert kube.get(f"{MINE}/mine")["status"]["phase"] == "Allocated"
    # A pod cannot use the claim of another pod.
    own = make_pod(kube, "own", 100)
    lifted(kube, "own")
    make_pod(kube, "thief", claim=f"own-{own['metadata']['uid']}")
    until(lambda: "ClaimOfAnotherPod" in reasons(kube, "thief"), 10, "the thief is told")
    assert gated(kube, "thief")
    assert second["metadata"]["uid"]


def test_a_namespaces_quota_counts_claims_made_by_hand(kube: Kube, running: Operator) -> None:
    make_pool(kube)
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"requests.remotegpu/milli": "500"}}}
    kube("POST", f"{TEAM}/resourcequotas", quota)
    for number in range(20):
        kube("POST", MINE, claim(f"c{number:02}", "default", fraction="0.1"))

    def phases() -> list[str]:
        return sorted(status(each).get("reason", "") for each in kube.items(MINE))

    until(lambda: phases() == ["Allocated"] * 5 + ["QuotaExceeded"] * 15, 20, "five have a share")
    kube.merge(f"{TEAM}/resourcequotas/few", {"spec": {"hard": {"requests.remotegpu/milli": "700"}}})
    until(lambda: phases() == ["Allocated"] * 7 + ["QuotaExceeded"] * 13, 20, "seven have a share")
    kube("DELETE", f"{TEAM}/resourcequotas/few")
    until(lambda: phases() == ["Allocated"] * 20, 20, "all have a share")


def test_a_pod_that_does_not_start_gives_its_share_back_until_it_does(kube: Kube, running: Operator) -> None:
    make_pool(kube, nodeSelector={"kubernetes.io/hostname": "node-a"}, startDeadline="2s")
    slow = make_pod(kube, "slow", 1000)
    lifted(kube, "slow")
    name = f"slow-{slow['metadata']['uid']}"
    has(kube, name, "Expired", "StartDeadlineExceeded")
    until(lambda: "StartDeadlineExceeded" in reasons(kube, "slow"), 10, "the reason at the pod")
    other = make_pod(kube, "other", 500)
    lifted(kube, "other")
    set_pod(kube, "other", phase="Running")
    set_pod(kube, "slow", phase="Running")
    has(kube, name, "Pending", "WaitingForCapacity")
    delete_pod(kube, "other")
    has(kube, name, "Allocated", "Allocated")
    assert claim_of(kube, other) is None


def test_a_renewal_that_fails_is_a_condition_and_an_expiry_a_metric(
    server: ApiServer, kube: Kube, nodes: Nodes, folder: Path
) -> None:
    secrets = f"/api/v1/namespaces/{SYSTEM}/secrets"

    def renewed() -> tuple[str, str]:
        conditions = status(kube.get(f"{POOLS}/default")).get("conditions", [])
        found: Object = next((each for each in conditions if each["type"] == "CertificatesRenewed"), {})
        return found.get("status", ""), found.get("reason", "")

    with operator(server.kubeconfig, folder) as running:
        make_pool(kube)
        until(lambda: renewed() == ("True", "Renewed"), 10, "the condition of a pool that is well")
        text = urllib3.request("GET", f"http://127.0.0.1:{running.port}/metrics").data.decode()
        rows = (line.rsplit(" ", 1) for line in text.splitlines())
        expiry = "remotegpu_certificate_expires_seconds{"
        expires = {name.split('"')[1]: float(value) for name, value in rows if name.startswith(expiry)}
        of_appliances = {f"{each[:-2]}-tls" for each in nodes.appliances}
        assert expires.keys() == {"remotegpu-ca", "remotegpu-webhook-tls", *of_appliances}
        assert all(each > time.time() + 50 * 24 * 3600 for each in expires.values())
    with operator(server.kubeconfig, folder, REMOTEGPU_CA_SECRET="theirs"):
        until(lambda: renewed() == ("False", "RenewalFailed"), 30, "the pool says that nothing is renewed")
        ours = kube.get(f"{secrets}/remotegpu-ca")["data"]
        data = {"tls.crt": ours["ca.crt"], "tls.key": ours["ca.key"]}
        kube("POST", secrets, {"metadata": {"name": "theirs"}, "data": data})
        until(lambda: renewed() == ("True", "Renewed"), 40, "the pool is well again")


def test_the_oldest_claim_that_waits_is_a_metric(kube: Kube, running: Operator) -> None:
    make_pool(kube, nodeSelector={"kubernetes.io/hostname": "node-a"})
    assert running.metric("remotegpu_oldest_waiting_claim_seconds") == 0
    kube("POST", MINE, claim("one", "default", fraction="1"))
    has(kube, "one", "Allocated", "Allocated")
    kube("POST", MINE, claim("two", "default", fraction="1"))
    has(kube, "two", "Pending", "WaitingForCapacity")
    until(lambda: running.metric("remotegpu_oldest_waiting_claim_seconds") > 1, 10, "it waits")
    kube("DELETE", f"{MINE}/one")
    has(kube, "two", "Allocated", "Allocated")
    assert running.metric("remotegpu_oldest_waiting_claim_seconds") == 0


def test_a_lost_appliance_and_its_return(kube: Kube, running: Operator, nodes: Nodes) -> None:
    make_pool(kube, nodeSelector={"kubernetes.io/hostname": "node-a"})
    made = make_pod(kube, "train", 250)
    session = lifted(kube, "train")["metadata"]["annotations"][SESSION]
    set_pod(kube, "train", phase="Running")
    name = f"train-{made['metadata']['uid']}"
    (pod_name,) = nodes.appliances
    # The appliance stops answering. The operator detects it within ten seconds.
    nodes.appliances[pod_name].stop()
    before = datetime.datetime.now(datetime.UTC)
    found = has(kube, name, "Lost", "ApplianceLost", 15)
    assert (datetime.datetime.now(datetime.UTC) - before).total_seconds() <= 10
    assert found["status"]["allocations"]
    assert {each["type"]: each["status"] for each in found["status"]["conditions"]} == {
        "Allocated": "True",
        "Ready": "False",
    }
    until(lambda: "ApplianceLost" in reasons(kube, "train"), 10, "the reason at the pod")
    pool_is(kube, "NotReady")
    # The appliance returns as another pod with another address and the same GPU.
    kube("DELETE", f"/api/v1/namespaces/{SYSTEM}/pods/{pod_name}", {"gracePeriodSeconds": 0})
    has(kube, name, "Allocated", "Allocated")

    def moved() -> bool:
        text = kube.get(f"{TEAM}/pods/train")["metadata"]["annotations"][SESSION]
        where = [each["endpoint"] for each in json.loads(text)["appliances"]]
        return text != session and where == [f"{nodes.appliances[pod_name].address}:7070"]

    until(moved, 20, "the pod learns the new address")


def test_a_node_that_goes_takes_its_claims_elsewhere(kube: Kube, running: Operator, nodes: Nodes) -> None:
    make_pool(kube)
    kube("POST", MINE, claim("one", "default", fraction="1"))
    kube("POST", MINE, claim("two", "default", fraction="1"))
    for name in ("one", "two"):
        has(kube, name, "Allocated", "Allocated")
    here = kube.get(f"{MINE}/two")["status"]["allocations"][0]
    kube("DELETE", f"{MINE}/one")
    nodes.hold_back(here["appliance"])
    kube("DELETE", f"/api/v1/nodes/{here['node']}")
    kube("DELETE", f"/api/v1/namespaces/{SYSTEM}/pods/{here['appliance']}-0", {"gracePeriodSeconds": 0})

    def elsewhere() -> bool:
        now = status(kube.get(f"{MINE}/two"))
        return bool(now["phase"] == "Allocated" and now["allocations"][0]["node"] != here["node"])

    until(elsewhere, 30, "the claim has another GPU")
    until(lambda: kube.find(f"{SETS}/{here['appliance']}") is None, 20, "the appliance is gone")
    secret = f"/api/v1/namespaces/{SYSTEM}/secrets/{here['appliance']}-tls"
    until(lambda: kube.find(secret) is None, 20, "its Secret too")


def test_a_new_image_waits_until_no_claim_is_on_the_appliance(kube: Kube, running: Operator, nodes: Nodes) -> None:
    make_pool(kube)
    # A claim without a pod does not delay the replacement.
    kube("POST", MINE, claim("idle", "default", fraction="0.1"))
    busy = make_pod(kube, "busy", 500)
    lifted(kube, "busy")
    found = claim_of(kube, busy)
    assert found is not None
    used = f"{found['status']['allocations'][0]['appliance']}-0"
    pods = f"/api/v1/namespaces/{SYSTEM}/pods"

    def images() -> dict[str, str]:
        return {each["metadata"]["name"]: each["spec"]["containers"][0]["image"] for each in kube.items(pods)}

    old = images()
    before = kube.get(f"{pods}/{used}")["metadata"]["uid"]
    kube.merge(f"{POOLS}/default", {"spec": {"image": "localhost/remotegpu-appliance:new"}})

    def free_one_is_new() -> bool:
        now = images()
        return now.get(used) == old[used] and set(now.values()) == {old[used], "localhost/remotegpu-appliance:new"}

    until(free_one_is_new, 40, "the free appliance is replaced")

    def drains() -> bool:
        phases = {each["name"]: each["phase"] for each in status(kube.get(f"{POOLS}/default"))["appliances"]}
        return phases.pop(used[:-2]) == "Draining" and set(phases.values()) == {"Ready"}

    until(drains, 20, "the other one takes no new claims")
    kube("POST", MINE, claim("next", "default", fraction="0.5"))
    assert has(kube, "next", "Allocated", "Allocated")["status"]["allocations"][0]["appliance"] != used[:-2]
    assert status(kube.get(f"{MINE}/{found['metadata']['name']}"))["phase"] == "Allocated"
    assert kube.get(f"{pods}/{used}")["metadata"]["uid"] == before
    set_pod(kube, "busy", phase="Succeeded")
    until(lambda: images().get(used) == "localhost/remotegpu-appliance:new", 40, "it is replaced as well")
    pool_is(kube, "Ready")
    has(kube, "idle", "Allocated", "Allocated")


def test_objects_that_somebody_deletes_are_made_again(kube: Kube, running: Operator, nodes: Nodes) -> None:
    make_pool(kube)
    (first, _) = kube.items(SETS)
    secret = f"/api/v1/namespaces/{SYSTEM}/secrets/{first['metadata']['name']}-tls"
    service = f"/api/v1/namespaces/{SYSTEM}/services/remotegpu-appliances-default"
    gone = (secret, service, f"{SETS}/{first['metadata']['name']}")
    for path in gone:
        kube("DELETE", path)
    until(lambda: all(kube.find(path) is not None for path in gone), 40, "everything is back")


def test_orphans_are_deleted_at_the_start(server: ApiServer, kube: Kube, nodes: Nodes, folder: Path) -> None:
    with operator(server.kubeconfig, folder) as first:
        make_pool(kube)
        made = {name: make_pod(kube, name, 250) for name in ("gone", "ended", "stays")}
        for name in made:
            lifted(kube, name)
        first.kill()
    delete_pod(kube, "gone")
    set_pod(kube, "ended", phase="Succeeded")
    assert len(kube.items(MINE)) == 3
    with operator(server.kubeconfig, folder, "operator-1"):
        until(lambda: len(kube.items(MINE)) == 1, 60, "only the claim of the pod that stays is left")
        kept = claim_of(kube, made["stays"])
        assert kept is not None
        assert status(kept)["phase"] == "Allocated"


def test_the_webhooks_certificate_and_the_bundle_in_its_configuration(kube: Kube, running: Operator) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    entry = {
        "name": "pods.remotegpu.io",
        "clientConfig": {"service": {"name": "remotegpu-webhook", "namespace": SYSTEM, "path": "/mutate-pods"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        "matchConditions": [{"name": "never", "expression": "false"}],
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
    }
    with_suffix = {**entry, "name": "templates.remotegpu.io"}
    kube("POST", path, {"metadata": {"name": "remotegpu"}, "webhooks": [entry, with_suffix]})
    try:

        def bundles() -> set[str]:
            entries = kube.get(f"{path}/remotegpu")["webhooks"]
            return {each["clientConfig"].get("caBundle", "") for each in entries}

        until(lambda: "" not in bundles(), 40, "the configuration has the bundle")
        (bundle,) = bundles()
        secret = kube.get(f"/api/v1/namespaces/{SYSTEM}/secrets/remotegpu-ca")["data"]
        assert bundle == secret["bundle.crt"]
        leaf = kube.get(f"/api/v1/namespaces/{SYSTEM}/secrets/remotegpu-webhook-tls")["data"]
        assert b"BEGIN CERTIFICATE" in base64.b64decode(leaf["tls.crt"])
    finally:
        kube("DELETE", f"{path}/remotegpu")


def test_probes_and_metrics_of_leader_and_candidate(
    server: ApiServer, kube: Kube, running: Operator, folder: Path
) -> None:
    make_pool(kube)
    with operator(server.kubeconfig, folder, "operator-1") as second:
        until(lambda: second.answers("/readyz"), 20, "the candidate is ready")
        assert running.answers("/healthz")
        assert (running.metric("remotegpu_operator_leader"), second.metric("remotegpu_operator_leader")) == (1, 0)
        make_pod(kube, "train", 250)
        lifted(kube, "train")
        assert running.metric("remotegpu_claims") == 1
        assert running.metric("remotegpu_claim_allocation_seconds_count") == 1
        assert running.metric("remotegpu_reconcile_errors_total") == 0
        # A leader that is asked to stop releases the Lease, so the other process need not wait until it expires.
        assert running.stop() == 0
        until(lambda: second.metric("remotegpu_operator_leader") == 1, 10, "the candidate leads")
        make_pod(kube, "next", 250)
        lifted(kube, "next")


def make_plugin(kube: Kube, node_name: str, ready: bool = True) -> None:
    """Creates the device plugin's pod on a node, and writes the plugin's resource into the node as the kubelet does."""
    labels = {"app.kubernetes.io/name": "remotegpu", "app.kubernetes.io/component": "deviceplugin"}
    spec = {"nodeName": node_name, "containers": [{"name": "deviceplugin", "image": "none"}]}
    kube("POST", f"{SYSTEM_PODS}", {"metadata": {"name": f"plugin-{node_name}", "labels": labels}, "spec": spec})
    amounts = {"remotegpu/milli": "2k"}
    # Removes the taint that the API server adds to every new node, as the node controller does.
    kube.merge(f"/api/v1/nodes/{node_name}", {"spec": {"taints": None}})
    kube.merge(f"/api/v1/nodes/{node_name}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
    set_plugin(kube, node_name, ready)


def set_plugin(kube: Kube, node_name: str, ready: bool) -> None:
    condition = {"type": "Ready", "status": str(ready)}
    kube.merge(f"{SYSTEM_PODS}/plugin-{node_name}/status", {"status": {"conditions": [condition]}})


def test_a_pod_waits_with_its_share_while_a_node_would_turn_it_away(kube: Kube, running: Operator) -> None:
    for name in ("node-a", "node-b"):
        make_plugin(kube, name)
    make_pool(kube)
    make_pod(kube, "before", 250)
    lifted(kube, "before")
    set_plugin(kube, "node-b", ready=False)
    made = make_pod(kube, "held", 250)
    name = f"held-{made['metadata']['uid']}"
    has(kube, name, "Allocated", "NoDevicePlugin")
    until(lambda: "NoDevicePlugin" in reasons(kube, "held"), 10, "the reason at the pod")
    assert gated(kube, "held")
    # A pod that selects another node need not wait.
    elsewhere = gated_pod("elsewhere", "default", 250)
    elsewhere["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-a"}
    kube("POST", f"{TEAM}/pods", elsewhere)
    lifted(kube, "elsewhere")
    assert gated(kube, "held")
    set_plugin(kube, "node-b", ready=True)
    lifted(kube, "held")
    has(kube, name, "Allocated", "Allocated")
    # The device plugin's pod is deleted. New pods wait until the kubelet reports nothing as allocatable.
    kube("DELETE", f"{SYSTEM_PODS}/plugin-node-b", {"gracePeriodSeconds": 0})
    made = make_pod(kube, "late", 250)
    has(kube, f"late-{made['metadata']['uid']}", "Allocated", "NoDevicePlugin")
    kube.merge("/api/v1/nodes/node-b/status", {"status": {"allocatable": {"remotegpu/milli": "0"}}})
    lifted(kube, "late")


def test_a_pod_that_a_kubelet_turns_away_is_told_and_its_share_is_back(kube: Kube, running: Operator) -> None:
    make_pool(kube, nodeSelector={"kubernetes.io/hostname": "node-a"})
    made = make_pod(kube, "unlucky", 1000)
    lifted(kube, "unlucky")
    said = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices remotegpu/milli"
    set_pod(kube, "unlucky", phase="Failed", reason="UnexpectedAdmissionError", message=said)
    until(lambda: "TurnedAway" in reasons(kube, "unlucky"), 10, "the pod is told")
    make_pod(kube, "next", 1000)
    lifted(kube, "next")
    assert claim_of(kube, made) is None
