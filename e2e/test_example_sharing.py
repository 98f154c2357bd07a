"""A GPU shared by four, waiting with a reason, full pools, and one process with GPUs of two appliances."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from support.checker import Checker
from support.kubectl import ROOT, Kubectl, Object
from support.namespace import Namespace
from support.system import until

from remotegpu.api.kubernetes import CLAIMS, POOLS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EXAMPLE = ROOT / "examples" / "04-sharing"


@pytest.fixture
def one_gpu(kubectl: Kubectl, nodes: list[str], namespace: Namespace) -> Iterator[str]:
    """The example's pool, on this cluster's first node, and its program."""
    pool = yaml.safe_load((EXAMPLE / "pool.yaml").read_text())
    pool["spec"]["nodeSelector"]["kubernetes.io/hostname"] = nodes[0]
    kubectl.apply(pool)
    name: str = pool["metadata"]["name"]

    def ready() -> bool:
        found = kubectl.get(POOLS, name)
        return found is not None and found.get("status", {}).get("phase") == "Ready"

    until(ready, 60, f"pool {name} is ready")
    namespace("create", "configmap", "sharing", f"--from-file={EXAMPLE / 'steps.py'}")
    yield name
    namespace("delete", "deployment,job,pod", "--all", "--now", seconds=120)
    kubectl("delete", POOLS, name, seconds=120)


def phases(claims: list[Object]) -> list[str]:
    return sorted(claim["status"]["phase"] for claim in claims)


def test_four_quarters_run_and_the_fifth_waits_and_says_why(
    namespace: Namespace, one_gpu: str, checker: Checker
) -> None:
    namespace("apply", "-f", str(EXAMPLE / "job.yaml"))
    until(lambda: phases(namespace.claims()) == ["Allocated"] * 4 + ["Pending"], 30, "four have a share, one waits")

    waiting = next(claim for claim in namespace.claims() if claim["status"]["phase"] == "Pending")
    assert waiting["status"]["reason"] == "WaitingForCapacity"
    line = namespace("get", CLAIMS, waiting["metadata"]["name"], "--no-headers")
    assert "WaitingForCapacity" in line
    pod = waiting["spec"]["pod"]["name"]
    until(lambda: waiting["status"]["message"] in namespace.describe("pod", pod), 10, "the pod's events say why")

    running = [each["spec"]["pod"]["name"] for each in namespace.claims() if each is not waiting]
    others = [name for name in running if name != pod]
    until(lambda: all("started" in namespace.logs(name) for name in others), 90, "four run at once")
    assert not namespace.logs(pod)
    assert checker.wrong() == []

    # Its share comes from a neighbour that has ended, whose pod still exists.
    namespace.wait_for_line(pod, "started", seconds=90)
    ended = [each["metadata"]["name"] for each in namespace.pods() if each["status"]["phase"] == "Succeeded"]
    assert ended
    owners = {claim["spec"]["pod"]["name"] for claim in namespace.claims()}
    assert not owners & set(ended)

    namespace("wait", "job/five-quarters", "--for=condition=complete", "--timeout=120s", seconds=130)
    assert all("result right" in namespace.logs(each["metadata"]["name"]) for each in namespace.pods())
    until(lambda: not namespace.claims(), 10, "completed pods hold nothing")


def test_a_full_pool_rolls_out_without_surge(namespace: Namespace, one_gpu: str, checker: Checker) -> None:
    namespace("apply", "-f", str(EXAMPLE / "deployment.yaml"))
    namespace("rollout", "status", "deployment/four-quarters", "--timeout=90s", seconds=100)
    before = {each["metadata"]["uid"] for each in namespace.pods(app="four-quarters")}
    namespace("rollout", "restart", "deployment/four-quarters")
    namespace("rollout", "status", "deployment/four-quarters", "--timeout=120s", seconds=130)

    def replaced() -> bool:
        pods = namespace.pods(app="four-quarters")
        return len(pods) == 4 and not before & {each["metadata"]["uid"] for each in pods}

    until(replaced, 30, "all four pods are new")
    checker.settled(20)


def test_one_process_uses_gpus_of_two_appliances(namespace: Namespace, checker: Checker) -> None:
    namespace("apply", "-k", str(ROOT / "examples" / "05-two-appliances"))
    claim = namespace.wait_for_claim("both", "Allocated")
    places = claim["status"]["allocations"]
    assert len({place["appliance"] for place in places}) == len({place["gpu"] for place in places}) == 2
    namespace.wait_for_phase("both", "Succeeded", seconds=120)
    assert "2 GPUs, dot product" in namespace.logs("both")
    checker.settled(20)
