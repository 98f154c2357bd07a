"""Faults of configurable number and length, with limits on each recovery time (docs/testing.md, F2, F4, F6, F9)."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial

import pytest
from cluster.lifecycle import NODES, crash, start_again
from support import processes
from support.checker import SYSTEM, Checker
from support.faults import cut_off, killed, paused, tenants
from support.installation import Installation
from support.kubectl import Kubectl, KubectlError, Object
from support.manifests import claim, deployment, job, pod, program
from support.namespace import Namespace, temporary
from support.system import Watch, until

from remotegpu.api.kubernetes import COMPONENT_LABEL

pytestmark = pytest.mark.e2e

SETTLED = 60
# How long the webhook and the API server are away: five minutes in `make test-e2e-all`.
AWAY = float(os.environ.get("REMOTEGPU_E2E_AWAY_SECONDS", "60"))
WEBHOOK = "deployment/remotegpu-webhook"


@pytest.fixture(autouse=True)
def sound(installation: Installation, checker: Checker) -> Iterator[None]:
    """Each fault finds a healthy cluster, and leaves one."""
    installation.wait_until_ready(SETTLED)
    yield
    installation.wait_until_ready(180)
    checker.settled(SETTLED)


class Times:
    """The longest of each kind, in seconds."""

    def __init__(self) -> None:
        self.worst: dict[str, float] = {}

    def note(self, what: str, since: float) -> None:
        took = time.monotonic() - since
        self.worst[what] = max(self.worst.get(what, 0), took)

    def __str__(self) -> str:
        return ", ".join(f"{what}: {seconds:.1f} s at most" for what, seconds in self.worst.items())


# ---- F2


@contextlib.contextmanager
def hit(how: str, installation: Installation, victim: Object) -> Iterator[None]:
    match how:
        case "killed":
            processes.kill(victim)
            yield
        case "deleted":
            name = victim["metadata"]["name"]
            installation.kubectl("delete", "pod", "-n", SYSTEM, name, "--grace-period=0", "--force", "--wait=false")
            yield
        case _:
            with cut_off(installation, victim):
                yield


def computing(namespace: Namespace, name: str, *, but: str = "") -> str | None:
    """Returns the pod of a Job that has made two rounds."""
    for each in namespace.pods(**{"job-name": name}):
        found = str(each["metadata"]["name"])
        if found != but and "round 2" in namespace.logs(found):
            return found
    return None


def place(found: Object) -> str:
    return str(found["status"]["allocations"][0]["appliance"])


@pytest.mark.timeout(1500)
def test_appliances_lost_nine_times(namespace: Namespace, installation: Installation, checker: Checker) -> None:
    """Kills, deletes and cuts off appliances in turn.

    A program has an error in 10 s, and a claim that stays says so in 10 s. A Job computes again in 30 s, 10 of which
    Kubernetes waits before its second attempt; elsewhere if no appliance is left.
    """
    times = Times()
    # On each appliance one that no pod's end takes away.
    namespace.create(claim("kept-0", memory="1100Mi"), claim("kept-1", memory="1100Mi"))
    kept = {"kept-0", "kept-1"}
    until(lambda: {phase_of(namespace, each)[0] for each in kept} == {"Allocated"}, 30, "the claims are allocated")
    where = {place(namespace.get("gpuclaim", each) or {}): each for each in kept}
    assert len(where) == 2
    for number in range(9):
        name, how = f"job-{number}", ("killed", "deleted", "cut off")[number % 3]
        made = job(name, program("hold.py"), fraction="0.3")
        made["spec"]["backoffLimit"] = 3
        namespace.create(made)
        first = until(lambda name=name: computing(namespace, name), 60, f"{name} computes")  # type: ignore[misc]
        lost = place(namespace.wait_for_claim(first, "Allocated"))
        victim = installation.appliance(lost)
        assert victim is not None
        with hit(how, installation, victim):
            begun, watch = time.monotonic(), Watch()
            namespace.wait_for_line(first, "CUDA error", 30)
            times.note(f"error when {how}", begun)
            assert watch.within(10), f"{how}: {times}"
            until(lambda lost=lost: was_lost(namespace, where[lost]), 20, f"{how}: the claim says ApplianceLost")  # type: ignore[misc]
            times.note(f"claim when {how}", begun)
            assert watch.within(10), f"{how}: {times}"
            next_pod = partial(computing, namespace, name, but=first)
            again = until(next_pod, 60, f"{how}: it computes again")
            times.note(f"again when {how}", begun)
            assert watch.within(30), f"{how}: {times}"
            now = place(namespace.wait_for_claim(again, "Allocated"))
            assert how != "cut off" or now != lost
        namespace.delete("job", name)
        namespace("delete", "events", "--all")
        installation.wait_until_ready(120)
        until(lambda: {phase_of(namespace, each)[0] for each in kept} == {"Allocated"}, 60, "the claims are well again")
    print(f"\n{times}")
    checker.settled(SETTLED)


def phase_of(namespace: Namespace, name: str) -> tuple[str, str]:
    found = namespace.get("gpuclaim", name)
    return (found["status"]["phase"], found["status"]["reason"]) if found else ("Gone", "")


def was_lost(namespace: Namespace, name: str) -> bool:
    """Whether the claim was lost. An appliance back in a second has its claim again unnoticed, but the Event stays."""
    if phase_of(namespace, name) == ("Lost", "ApplianceLost"):
        return True
    events = namespace.all("events")
    return any(e["reason"] == "ApplianceLost" and e["involvedObject"]["name"] == name for e in events)


# ---- F4


def renewed(installation: Installation) -> str:
    lease = installation.kubectl.get("lease", "remotegpu-operator", SYSTEM)
    return str(lease["spec"].get("renewTime")) if lease else ""


@pytest.mark.timeout(900)
def test_operator_killed_nine_times_during_two_hundred_claims(
    namespace: Namespace, installation: Installation, checker: Checker
) -> None:
    running = tenants(namespace, installation)
    asked = [claim(f"claim-{number:03d}", memory="2Mi") for number in range(200)]
    times = Times()

    def allocated() -> int:
        return sum(each["status"]["phase"] == "Allocated" for each in namespace.claims())

    for number in range(9):
        namespace.create(*asked[20 * number : 20 * (number + 1)])
        before = renewed(installation)
        begun = time.monotonic()
        processes.kill(installation.leader())
        assert checker.sample() == []
        until(lambda before=before: renewed(installation) > before, 60, "an operator holds the Lease")  # type: ignore[misc]
        times.note("without an operator", begun)
    namespace.create(*asked[180:])
    begun, watch = time.monotonic(), Watch()
    until(lambda: allocated() == 200 + len(running), 60, "all claims are allocated")
    times.note("settled", begun)
    print(f"\n{times}")
    assert watch.within(15), times
    checker.settled(SETTLED)
    for tenant in running:
        tenant.ends_well()
    namespace("delete", "gpuclaims", "--all", "--wait=false")
    until(lambda: not any(truth.held for truth in checker.truths()), SETTLED, "nothing is held any more")


# ---- F6


@pytest.mark.timeout(AWAY + 300)
def test_the_webhook_is_away_for_long(namespace: Namespace, installation: Installation, kubectl: Kubectl) -> None:
    running = tenants(namespace, installation)
    before = [tenant.rounds() for tenant in running]
    kubectl("scale", WEBHOOK, "--replicas=0", "-n", SYSTEM)
    try:
        until(lambda: not kubectl.all("pods", SYSTEM, {COMPONENT_LABEL: "webhook"}), 60, "the webhook is away")
        begun, number = time.monotonic(), 0
        while time.monotonic() - begun < AWAY:
            number += 1
            namespace.run(pod(f"plain-{number}", ["true"]))
            sentence = namespace.refusal("create", "-f", "-", stdin=json.dumps(pod("new", ["true"], fraction="0.1")))
            assert "webhook" in sentence
        assert number > AWAY / 60, "strangers' pods start as always"
    finally:
        kubectl("scale", WEBHOOK, "--replicas=2", "-n", SYSTEM)
    kubectl("rollout", "status", WEBHOOK, "-n", SYSTEM, "--timeout=90s", seconds=100)
    assert "ok" in namespace.run(pod("with-a-share", program("vector_add.py"), fraction="0.1"))
    for tenant, rounds in zip(running, before, strict=True):
        assert tenant.rounds() > rounds + AWAY
        tenant.ends_well()


@pytest.mark.timeout(600)
def test_the_webhooks_node_is_drained(namespace: Namespace, installation: Installation, kubectl: Kubectl) -> None:
    """Pods with a share are made all the time; pods on the other node are not affected."""
    running = tenants(namespace, installation)
    node = installation.pods("webhook")[0]["spec"]["nodeName"]
    stays = [each for each in running if place_of(installation, each.appliance) != node]
    namespace("delete", "pod", *(each.pod for each in running if each not in stays), "--now")
    done = False

    def make_pods() -> int:
        count = 0
        while not done:
            count += 1
            namespace.create(pod(f"during-{count}", program("vector_add.py"), fraction="0.05"))
            time.sleep(0.5)
        return count

    with ThreadPoolExecutor(1) as maker:
        making = maker.submit(make_pods)
        try:
            flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
            selected = "--pod-selector=app.kubernetes.io/name=remotegpu"
            kubectl("drain", node, *flags, selected, seconds=130)
            assert not [each for each in installation.pods("webhook") if each["spec"]["nodeName"] == node]
        finally:
            done = True
            kubectl("uncordon", node)
        count = making.result()
    assert count > 2
    installation.wait_until_ready(120)
    for number in range(1, count + 1):
        namespace.wait_for_phase(f"during-{number}", "Succeeded", seconds=90)
    for each in stays:
        each.goes_on()
        each.ends_well()


def place_of(installation: Installation, appliance: str) -> str:
    found = installation.appliance(appliance)
    assert found is not None
    return str(found["spec"]["nodeName"])


@pytest.mark.timeout(600)
@pytest.mark.skipif(AWAY < 300, reason="a node that does not come back takes all tests with it: `make test-e2e-all`")
def test_all_nodes_start_anew(namespace: Namespace, installation: Installation, kubectl: Kubectl) -> None:
    """All nodes crash at once: every process and all of /run is gone. What controllers own runs again by itself."""
    namespace.create(deployment("serves", program("hold.py"), replicas=2, fraction="0.3"))
    namespace("rollout", "status", "deployment/serves", "--timeout=60s", seconds=70)
    with contextlib.ExitStack() as crashed:
        for node in NODES:
            crashed.callback(start_again, node)
            crash(node)
        begun, moment = time.monotonic(), f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
    # Until the kubelets report, the API server has the state from before.
    until(lambda: all(started(each) >= moment for each in kubectl.all("pods", SYSTEM)), 240, "all pods start again")
    installation.wait_until_ready(240)
    assert "ok" in namespace.run(pod("next", program("vector_add.py"), fraction="0.2"), seconds=120)

    def serves() -> bool:
        found = namespace.get("deployment", "serves")
        return found is not None and found["status"].get("availableReplicas") == 2

    until(serves, 180, "the deployment runs again")
    print(f"\nall well after {time.monotonic() - begun:.0f} s")
    turned_away = [each for each in namespace.pods() if each["status"].get("reason") == "UnexpectedAdmissionError"]
    assert not [each["metadata"]["name"] for each in turned_away if not each["metadata"].get("ownerReferences")]


def started(found: Object) -> str:
    """Returns when the pod's only container started, as Kubernetes writes it; empty if it does not run."""
    statuses = found["status"].get("containerStatuses") or [{}]
    return str(statuses[0].get("state", {}).get("running", {}).get("startedAt", ""))


# ---- F9


@pytest.mark.timeout(AWAY + 400)
@pytest.mark.parametrize("away", [paused, killed])
def test_the_api_server_is_away_for_long(
    kubectl: Kubectl,
    installation: Installation,
    checker: Checker,
    away: Callable[[str], AbstractContextManager[None]],
) -> None:
    """Programs go on, and one ends unseen by the API server; 90 s later all is right."""
    with temporary(kubectl) as namespace:
        running = tenants(namespace, installation)
        namespace.create(pod("ends", program("hold.py", "--rounds", "100"), fraction="0.1"))
        namespace.wait_for_line("ends", "round 2")
        before = [tenant.rounds() for tenant in running]
        with away("apiserver"):
            begun = time.monotonic()
            until(lambda: time.monotonic() - begun > AWAY, AWAY + 5, "so long")
        begun, watch, times = time.monotonic(), Watch(), Times()
        until(lambda: answers(kubectl), 60, "the API server answers")
        times.note("it answers", begun)
        until(lambda: nodes_are_ready(kubectl), 120, "the nodes are ready")
        times.note("nodes are ready", begun)
        installation.wait_until_ready(120)
        times.note("all parts are ready", begun)
        until(lambda: namespace.claim_of("ends") is None, 120, "the claim of the pod that ended is gone")
        times.note("the claim of what ended is gone", begun)
        checker.settled(120)
        times.note("all is right", begun)
        print(f"\n{away.__name__} for {AWAY:.0f} s; {times}")
        assert watch.within(90)
        for tenant, rounds in zip(running, before, strict=True):
            assert tenant.rounds() > rounds + AWAY
            assert tenant.phase_of_claim()[0] == "Allocated"
            tenant.ends_well()
        assert "ok" in namespace.run(pod("next", program("vector_add.py"), fraction="0.2"))


def nodes_are_ready(kubectl: Kubectl) -> bool:
    return all(
        {"type": "Ready", "status": "True"}.items() <= condition.items()
        for node in kubectl.all("nodes")
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready"
    )


def answers(kubectl: Kubectl) -> bool:
    with contextlib.suppress(KubectlError):
        return "ok" in kubectl("get", "--raw", "/readyz", seconds=10)
    return False
