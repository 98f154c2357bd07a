"""A namespace's quota, the default share of its pods, and the order in which waiting claims are served."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import yaml
from support.checker import Checker
from support.kubectl import ROOT, Kubectl, KubectlError, Object
from support.manifests import claim, pod, program, software_pool
from support.namespace import Namespace, gated
from support.system import until

from remotegpu.api.kubernetes import CLAIMS, MILLI, POOL_ANNOTATION, POOLS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EXAMPLE = ROOT / "examples" / "07-quotas"
POOL = "quotas"
QUOTA = 1000


@pytest.fixture(scope="module")
def pool(kubectl: Kubectl, nodes: list[str], installation: object) -> Iterator[str]:
    """Yields a pool of one GPU for these tests alone."""
    kubectl.apply(software_pool(POOL, node=nodes[0], memory="1Gi"))

    def ready() -> bool:
        found = kubectl.get(POOLS, POOL)
        return found is not None and found["status"]["phase"] == "Ready"

    until(ready, 90, f"pool {POOL} is ready")
    yield POOL
    kubectl("delete", POOLS, POOL, seconds=120)


@pytest.fixture
def limits(namespace: Namespace) -> Namespace:
    namespace("apply", "-f", str(EXAMPLE / "limits.yaml"))
    # Without its first status a quota refuses everything.
    until(lambda: "status" in (namespace.get("resourcequota", "one-gpu") or {}), 20, "the quota is in force")
    return namespace


@pytest.fixture
def urgent(kubectl: Kubectl) -> Iterator[str]:
    kubectl("apply", "-f", str(EXAMPLE / "priorities.yaml"))
    yield "urgent-training"
    kubectl("delete", "-f", str(EXAMPLE / "priorities.yaml"))


def held(namespace: Namespace) -> int:
    """Returns the thousandths of GPUs that the claims of the namespace have at this moment."""
    return sum(share["milli"] for each in namespace.claims() for share in each["status"].get("allocations", ()))


def waits_for(namespace: Namespace, name: str, reason: str) -> str:
    """Waits until the claim waits for this reason; returns its message."""

    def told() -> str | None:
        found = namespace.get(CLAIMS, name)
        return found["status"]["message"] if found and found["status"]["reason"] == reason else None

    message: str = until(told, 20, f"claim {name} says {reason}")
    return message


def test_what_a_pod_gets_that_does_not_say(limits: Namespace, urgent: str, checker: Checker) -> None:
    limits("apply", "-f", str(EXAMPLE / "pods.yaml"))
    for name, milli in (("by-default", 100), ("by-itself", 250)):
        limits.wait_for_phase(name, "Succeeded", seconds=90)
        (shown,) = [line for line in limits.logs(name).splitlines() if "MiB" in line and line[0].isdigit()]
        assert int(shown.split()[0]) == 2048 * milli // 1000
    limits.wait_for_phase("without", "Succeeded", seconds=60)
    assert limits.logs("without").strip() == "no GPU"
    found = limits.get("pod", "without")
    assert found is not None
    assert not found["metadata"].get("labels")
    checker.settled(20)


def test_pods_past_the_quota_are_refused_and_claims_wait(limits: Namespace, pool: str, checker: Checker) -> None:
    on_pool = {POOL_ANNOTATION: pool}
    limits.create(pod("three-quarters", program("hold.py"), fraction=0.75, annotations=on_pool))
    limits.wait_for_claim("three-quarters", "Allocated")
    with pytest.raises(KubectlError, match="exceeded quota: one-gpu"):
        limits.create(pod("too-much", program("hold.py"), fraction=0.5, annotations=on_pool))

    limits.apply(claim("too-much", fraction="0.3", pool=pool), claim("rest", fraction="0.25", pool=pool))
    until(lambda: held(limits) == QUOTA, 20, "what is left of the quota is given to the claim that fits it")
    assert waits_for(limits, "too-much", "QuotaExceeded").startswith(
        f"0.3 of a GPU is more than ResourceQuota one-gpu leaves: it allows namespace {limits.name} 1, and the claims"
    )
    limits.delete("pod", "three-quarters", now=True)
    until(lambda: held(limits) == 550, 20, "what the pod gave back is given to the claim that waited")
    checker.settled(20)


def test_fifty_at_once_stay_within_the_quota(limits: Namespace, pool: str, checker: Checker) -> None:
    """Half of them pods, half claims made by hand, each a tenth; the API server counts pods, the operator both."""
    pods = [
        pod(f"pod-{number:02}", ["sleep", "600"], fraction=0.1, annotations={POOL_ANNOTATION: pool})
        for number in range(25)
    ]
    claims = [claim(f"claim-{number:02}", fraction="0.1", pool=pool) for number in range(25)]
    refused: list[str] = []

    def create(each: Object) -> None:
        try:
            limits.create(each)
        except KubectlError as error:
            refused.append(str(error))

    most: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            most.append(held(limits))

    threads = [threading.Thread(target=create, args=(each,)) for each in (*pods, *claims)]
    watcher = threading.Thread(target=watch)
    watcher.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: held(limits) == QUOTA, 60, "the whole quota is in use")
    over.set()
    watcher.join()
    assert max(most) <= QUOTA
    assert len(refused) == 15, "the API server lets pods in for 1.0 of a GPU"
    assert all("exceeded quota: one-gpu" in sentence for sentence in refused)

    waiting = [each for each in limits.claims() if each["status"]["phase"] == "Pending"]
    assert len(waiting) == 25 + 10 - 10
    until(lambda: reasons(limits) == {"Allocated", "QuotaExceeded"}, 20, "the others say that the quota is used up")
    checker.settled(20)

    # One gives back what it has, one that waits gets it.
    served = next(
        each for each in limits.claims() if each["status"]["phase"] == "Allocated" and "pod" not in each["spec"]
    )
    limits("delete", CLAIMS, served["metadata"]["name"])
    until(lambda: held(limits) == QUOTA and len(limits.claims()) == 34, 20, "the tenth that was given back is in use")
    limits("delete", "pod", "--all", "--now", "--wait=false")
    limits("delete", CLAIMS, "--all")
    checker.settled(60)


def reasons(namespace: Namespace) -> set[str]:
    return {each["status"]["reason"] for each in namespace.claims()}


def test_the_urgent_one_is_served_first(namespace: Namespace, pool: str, urgent: str, checker: Checker) -> None:
    namespace.apply(claim("all", fraction=1, pool=pool))
    until(lambda: held(namespace) == 1000, 20, "the pool is full")
    template = yaml.safe_load((ROOT / "examples" / "07-quotas" / "priorities.yaml").read_text())
    for name, more in (("usual", {}), ("urgent", {"priorityClassName": urgent})):
        wanted = pod(name, program("vector_add.py"), limits={MILLI: 1000}, annotations={POOL_ANNOTATION: pool})
        wanted["spec"] |= more
        namespace.create(wanted)
        own = namespace.wait_for_claim(name, "Pending")
        waits_for(namespace, own["metadata"]["name"], "WaitingForCapacity")
        found = namespace.get("pod", name)
        assert found is not None
        assert gated(found)
    own = namespace.wait_for_claim("urgent", "Pending")
    assert own["spec"]["priority"] == template["value"]

    namespace("delete", CLAIMS, "all")
    namespace.wait_for_claim("urgent", "Allocated")
    usual = namespace.wait_for_claim("usual", "Pending")
    assert usual["status"]["reason"] == "WaitingForCapacity"
    namespace.wait_for_phase("urgent", "Succeeded", seconds=90)
    namespace.wait_for_phase("usual", "Succeeded", seconds=90)
    checker.settled(20)
