"""Tests of an operator that is killed, paused or replaced by another one.

They check the API server's objects: no GPU is allocated twice, and no deleted pod or claim has a share.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.kubelab import (
    CLAIMS,
    GATE,
    MIB,
    POOLS,
    SYSTEM,
    Kube,
    Object,
    Operator,
    all_free,
    claim,
    gated_pod,
    in_parallel,
    node,
    operator,
    pool,
    pool_status,
    ready,
    shares,
)
from support.kubenodes import Nodes
from support.shifted_clock import JUMP, ShiftedClock
from support.system import Watch, free_port, until

TEAM = "/api/v1/namespaces/team"
MINE = CLAIMS.format("team")
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/remotegpu-operator"
SECRETS = f"/api/v1/namespaces/{SYSTEM}/secrets"
GPU_MEMORY = 1024 * MIB


@pytest.fixture
def nodes(kube: Kube) -> Iterator[Nodes]:
    kube.namespace("team")
    for name in ("node-a", "node-b"):
        kube("POST", "/api/v1/nodes", node(name))
    kube("POST", POOLS, pool("default", software={"gpus": 4, "memory": GPU_MEMORY}))
    with Nodes(kube, subnet=12) as running:
        yield running


def never_too_much(kube: Kube) -> None:
    given = shares(kube)
    assert all(memory <= GPU_MEMORY for memory in given.values()), given


def phases(kube: Kube) -> list[str]:
    return sorted(f"{each['status']['phase']} {each['status']['reason']}" for each in kube.items(MINE))


def test_killed_in_the_middle_of_a_hundred_pods(server: ApiServer, kube: Kube, nodes: Nodes, folder: Path) -> None:
    """Eight GPUs and 100 pods with a tenth each, of which 80 fit.

    The operator is killed three times while the pods start, and once while they end.
    """
    with operator(server.kubeconfig, folder) as running:
        ready(kube, 2)

        def allocated() -> int:
            return sum(each.startswith("Allocated") for each in phases(kube))

        with ThreadPoolExecutor(1) as writer:
            writing = writer.submit(
                in_parallel,
                lambda number: kube("POST", f"{TEAM}/pods", gated_pod(f"p{number:03}", "default", 100)),
                range(100),
            )
            for enough in (10, 30, 50):
                until(lambda enough=enough: allocated() >= enough, 60, f"{enough} have a share")  # type: ignore[misc]
                running.kill()
                never_too_much(kube)
                running.restart()
            writing.result()
        wanted = ["Allocated Allocated"] * 80 + ["Pending WaitingForCapacity"] * 20
        until(lambda: phases(kube) == wanted, 60, "80 have a share and 20 wait")
        never_too_much(kube)
        pods = kube.items(f"{TEAM}/pods")
        until(lambda: len(free_of_gate(kube)) == 80, 20, "80 are let go")
        holders = {each["spec"]["pod"]["name"] for each in kube.items(MINE) if each["status"]["phase"] == "Allocated"}
        assert free_of_gate(kube) == holders
        # All pods end while no operator runs.
        running.kill()
        for pod in pods:
            kube("DELETE", f"{TEAM}/pods/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
        running.restart()
        until(lambda: kube.items(MINE) == [], 60, "no claim is left")
        until(lambda: all_free(kube), 20, "everything is free")


def free_of_gate(kube: Kube) -> set[str]:
    return {
        each["metadata"]["name"]
        for each in kube.items(f"{TEAM}/pods")
        if not any(gate["name"] == GATE for gate in each["spec"].get("schedulingGates") or [])
    }


def test_a_leader_that_slept_writes_nothing_when_it_wakes(
    server: ApiServer, kube: Kube, nodes: Nodes, folder: Path
) -> None:
    with operator(server.kubeconfig, folder, "first") as first, operator(server.kubeconfig, folder, "second") as second:
        ready(kube, 2)
        until(lambda: first.answers("/healthz") and second.answers("/healthz"), 30, "both serve metrics")
        (sleeper,) = [each for each in (first, second) if each.metric("remotegpu_operator_leader")]
        other = second if sleeper is first else first
        assert sleeper.writes() > 0
        sleeper.pause()
        # The paused operator misses many changes: new claims, and a changed pool.
        in_parallel(lambda number: kube("POST", MINE, claim(f"c{number:02}", "default", fraction="0.5")), range(20))
        wanted = ["Allocated Allocated"] * 16 + ["Pending WaitingForCapacity"] * 4
        until(lambda: phases(kube) == wanted, 60, "the other one placed what fits")
        never_too_much(kube)
        before = {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in kube.items(MINE)}
        assert kube.get(LEASE)["spec"]["holderIdentity"] == ("second" if sleeper is first else "first")
        sleeper.resume()
        assert sleeper.process.wait(20) == 1, sleeper.log
        assert "the Lease was lost" in sleeper.log
        after = {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in kube.items(MINE)}
        assert after == before, "nobody wrote after the sleeper woke"
        assert kube.get(LEASE)["spec"]["holderIdentity"] == ("second" if sleeper is first else "first")
        assert other.process.poll() is None


@pytest.mark.parametrize("how", ["killed", "stopped", "told to end"])
def test_somebody_leads_again_within_20_seconds(
    server: ApiServer, kube: Kube, nodes: Nodes, folder: Path, how: str
) -> None:
    """A second operator leads within 20 s after the leader was killed, stopped or asked to end."""
    with operator(server.kubeconfig, folder, "first") as first, operator(server.kubeconfig, folder, "second") as second:
        ready(kube, 2)
        until(lambda: first.answers("/healthz") and second.answers("/healthz"), 30, "both serve metrics")
        (leader,) = [each for each in (first, second) if each.metric("remotegpu_operator_leader")]
        other = second if leader is first else first
        kube("POST", MINE, claim("before", "default", fraction="0.5"))
        until(lambda: phases(kube) == ["Allocated Allocated"], 20, "the first leads")
        paused = Watch()
        match how:
            case "killed":
                leader.kill()
            case "stopped":
                leader.pause()
            case _:
                leader.process.terminate()
        kube("POST", MINE, claim("after", "default", fraction="0.5"))
        begun = time.monotonic()
        until(lambda: phases(kube) == ["Allocated Allocated"] * 2, 40, "the other one leads")
        print(f"{how}: {time.monotonic() - begun:.1f} s")
        assert paused.within(5 if how == "told to end" else 20)
        assert other.metric("remotegpu_operator_leader") == 1
        never_too_much(kube)


def test_operators_whose_clocks_jump(server: ApiServer, kube: Kube, nodes: Nodes, folder: Path) -> None:
    """The operators' clocks are wrong, and then jump repeatedly. Leader, claims and certificates stay the same."""
    clocks = [ShiftedClock(folder / name) for name in ("clock-first", "clock-second")]
    with (
        operator(server.kubeconfig, folder, "first", **clocks[0].environment) as first,
        operator(server.kubeconfig, folder, "second", **clocks[1].environment) as second,
    ):
        ready(kube, 2)
        until(lambda: first.answers("/healthz") and second.answers("/healthz"), 30, "both serve metrics")
        in_parallel(lambda number: kube("POST", f"{TEAM}/pods", gated_pod(f"p{number}", "default", 250)), range(8))
        until(lambda: phases(kube) == ["Allocated Allocated"] * 8, 30, "all have a share")
        until(lambda: len(free_of_gate(kube)) == 8, 20, "all are let go")

        def remembered() -> Object:
            claims = {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in kube.items(MINE)}
            secrets = {each["metadata"]["name"]: each["data"] for each in kube.items(SECRETS)}
            lease = kube.get(LEASE)["spec"]
            return {"claims": claims, "secrets": secrets, "lease": [lease["holderIdentity"], lease["leaseTransitions"]]}

        before = remembered()
        for one, two in ((JUMP, -JUMP), (-JUMP, JUMP)):
            clocks[0].jump(one)
            clocks[1].jump(two)
            renewed = kube.get(LEASE)["spec"]["renewTime"]
            until(lambda renewed=renewed: kube.get(LEASE)["spec"]["renewTime"] != renewed, 20, "the Lease is renewed")  # type: ignore[misc]
            assert first.metric("remotegpu_operator_leader") + second.metric("remotegpu_operator_leader") == 1
        with ThreadPoolExecutor(2) as strobing:
            list(strobing.map(lambda clock: clock.strobe(20), clocks))
        assert remembered() == before
        kube("POST", f"{TEAM}/pods", gated_pod("after", "default", 250))
        until(lambda: phases(kube) == ["Allocated Allocated"] * 9, 20, "work goes on")


def test_nothing_leaks_under_random_pods_claims_and_crashes(
    server: ApiServer, kube: Kube, nodes: Nodes, folder: Path
) -> None:
    chance = random.Random(20261121)
    names: list[str] = []
    claims: list[str] = []

    def step(number: int, running: Operator) -> None:
        kind = chance.choices(["pod", "end", "delete", "claim", "drop", "appliance", "crash"], [8, 4, 4, 4, 3, 1, 1])[0]
        if kind == "pod":
            names.append(f"p{number}")
            kube("POST", f"{TEAM}/pods", gated_pod(names[-1], "default", chance.choice([100, 250, 700, 1000, 2000])))
        elif kind == "end" and names:
            phase = chance.choice(["Succeeded", "Failed", "Running"])
            kube.merge(f"{TEAM}/pods/{chance.choice(names)}/status", {"status": {"phase": phase}})
        elif kind == "delete" and names:
            name = names.pop(chance.randrange(len(names)))
            kube("DELETE", f"{TEAM}/pods/{name}", {"gracePeriodSeconds": 0})
        elif kind == "claim":
            claims.append(f"c{number}")
            kube("POST", MINE, claim(claims[-1], "default", memory=f"{chance.randrange(10, 900)}Mi"))
        elif kind == "drop" and claims:
            kube("DELETE", f"{MINE}/{claims.pop(chance.randrange(len(claims)))}")
        elif kind == "appliance":
            pods = kube.items(f"/api/v1/namespaces/{SYSTEM}/pods")
            if pods:
                victim = chance.choice(pods)["metadata"]["name"]
                kube("DELETE", f"/api/v1/namespaces/{SYSTEM}/pods/{victim}", {"gracePeriodSeconds": 0})
        elif kind == "crash":
            running.kill()
            running.restart()

    with operator(server.kubeconfig, folder) as running:
        ready(kube, 2)
        for number in range(250):
            step(number, running)
            if number % 10 == 0:
                never_too_much(kube)
        until(lambda: settled(kube), 60, "every claim has a share or a reason, and no ended pod has one")
        never_too_much(kube)
        for name in names:
            kube("DELETE", f"{TEAM}/pods/{name}", {"gracePeriodSeconds": 0})
        for name in claims:
            kube("DELETE", f"{MINE}/{name}")
        until(lambda: kube.items(MINE) == [], 60, "no claim is left")
        until(lambda: pool_status(kube)["free"]["milli"] == 8000, 30, "everything is free")


def settled(kube: Kube) -> bool:
    pods = {each["metadata"]["uid"]: each for each in kube.items(f"{TEAM}/pods")}
    live = {uid for uid, pod in pods.items() if pod["status"]["phase"] not in {"Succeeded", "Failed"}}
    found = kube.items(MINE)
    if pool_status(kube).get("ready") != "2/2":
        return False
    never_started = {uid for uid in live if GATE in str(pods[uid]["spec"].get("schedulingGates"))}
    of_pods = {each["spec"]["pod"]["uid"]: each["status"]["phase"] for each in found if "pod" in each["spec"]}
    waiting = {uid for uid, phase in of_pods.items() if phase == "Pending"}
    clear = all(
        each["status"]["phase"] == "Allocated" or each["status"]["reason"] in {"WaitingForCapacity", "TooLarge"}
        for each in found
    )
    return clear and of_pods.keys() <= live and never_started <= waiting


def test_the_memory_does_not_move_with_pods_that_are_not_ours(
    server: ApiServer, kube: Kube, nodes: Nodes, folder: Path
) -> None:
    with operator(server.kubeconfig, folder) as running:
        ready(kube, 2)
        before = running.memory()

        def foreign(number: int) -> None:
            body = gated_pod(f"foreign-{number}", "default", 100)
            body["metadata"] = {"name": f"foreign-{number}", "labels": {"app": "x" * 60}}
            kube("POST", f"{TEAM}/pods", body)

        in_parallel(foreign, range(1000))
        kube("POST", f"{TEAM}/pods", gated_pod("ours", "default", 100))
        until(lambda: "ours" in free_of_gate(kube), 20, "our pod is let go")
        assert len(free_of_gate(kube)) == 1
        assert running.memory() - before < 4 * MIB


def test_a_replica_that_waits_answers_probes_and_ends_within_two_seconds(
    server: ApiServer, kube: Kube, folder: Path
) -> None:
    """The holder of the Lease keeps it for much longer than a kubelet waits for an answer."""
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 3600}
    kube("POST", LEASE.rsplit("/", 1)[0], {"metadata": {"name": "remotegpu-operator"}, "spec": spec})
    with operator(server.kubeconfig, folder, REMOTEGPU_DASHBOARD_PORT=str(free_port())) as waiting:
        until(lambda: waiting.answers("/healthz") and waiting.answers("/readyz"), 30, "it is alive and ready")
        assert waiting.metric("remotegpu_operator_leader") == 0
        paused = Watch()
        assert waiting.stop() == 0
        assert paused.within(2), waiting.log
    assert kube.get(LEASE)["spec"] == spec
