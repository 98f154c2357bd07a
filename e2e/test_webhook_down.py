"""Without the webhook, other pods start as usual, and pods that have a share keep running."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.checker import SYSTEM, Checker
from support.installation import Installation
from support.kubectl import Kubectl
from support.manifests import deployment, job, pod, program
from support.namespace import Namespace
from support.system import until

from remotegpu.api.kubernetes import COMPONENT_LABEL, FRACTION

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

WEBHOOK = "deployment/remotegpu-webhook"


@pytest.fixture
def at_work(namespace: Namespace, installation: Installation) -> Namespace:
    """Made while the webhook ran: a deployment, a job, a pod that holds what is left, and one that waits for it."""
    namespace.apply(
        deployment("serves", program("hold.py"), replicas=2, fraction="0.1", max_surge=0),
        job("counts", program("hold.py", "--rounds", "60"), fraction="0.1"),
    )
    namespace("rollout", "status", "deployment/serves", "--timeout=60s", seconds=70)
    capacity = len(installation.appliances())
    holders = [pod(f"holder-{number}", program("hold.py"), fraction="0.8") for number in range(capacity)]
    namespace.create(*holders)
    for each in holders:
        namespace.wait_for_claim(each["metadata"]["name"], "Allocated")
    namespace.create(pod("waits", program("vector_add.py"), fraction="0.5"))
    namespace.wait_for_claim("waits", "Pending")
    return namespace


@pytest.fixture
def without_webhook(at_work: Namespace, kubectl: Kubectl) -> Iterator[Namespace]:
    kubectl("scale", WEBHOOK, "--replicas=0", "-n", SYSTEM)
    # A stopping replica answers until no client asks it any more.
    until(lambda: not kubectl.all("pods", SYSTEM, {COMPONENT_LABEL: "webhook"}), 60, "the webhook is away")
    yield at_work
    restore(kubectl)


def restore(kubectl: Kubectl) -> None:
    kubectl("scale", WEBHOOK, "--replicas=2", "-n", SYSTEM)
    kubectl("rollout", "status", WEBHOOK, "-n", SYSTEM, "--timeout=90s", seconds=100)


def test_without_the_webhook(without_webhook: Namespace, kubectl: Kubectl, checker: Checker) -> None:
    """Tests many facts in one, since each would cost the time of the set-up."""
    namespace = without_webhook
    # Pods without a share are not affected.
    namespace.run(pod("plain", ["true"]))
    # A pod that asks for a share is refused with the reason, and nothing is stored.
    for made in (
        pod("new", ["true"], fraction="0.1"),
        deployment("new", ["true"], replicas=1, fraction="0.1"),
    ):
        sentence = namespace.refusal("create", "-f", "-", stdin=json.dumps(made))
        assert "remotegpu" in sentence
        assert "webhook" in sentence
        assert namespace.get(made["kind"], "new") is None
    # Gates are lifted and shares given on.
    namespace.delete("pod", "holder-0")
    namespace.wait_for_phase("waits", "Succeeded", seconds=60)
    # A job with a share completes.
    namespace("wait", "job/counts", "--for=condition=complete", "--timeout=90s", seconds=100)
    # A deployment with a share is scaled and rolled; its new pods wait for the webhook.
    namespace("scale", "deployment/serves", "--replicas=0")
    until(lambda: not namespace.pods(app="serves"), 30, "it scales to none")
    namespace("rollout", "restart", "deployment/serves")
    namespace("set", "env", "deployment/serves", "COLOUR=blue")
    namespace("scale", "deployment/serves", "--replicas=2")
    until(lambda: "webhook" in namespace("get", "events"), 30, "its replica set says who is away")
    restore(kubectl)
    # The replica set tries again by itself, after a while that grows; a person would restart it.
    namespace("rollout", "restart", "deployment/serves")
    namespace("rollout", "status", "deployment/serves", "--timeout=90s", seconds=100)
    namespace("delete", "pods", "--all", "--now", seconds=60)
    found = namespace.get("deployment", "serves")
    assert found
    assert FRACTION not in json.dumps(found["spec"])
    checker.settled(60)
