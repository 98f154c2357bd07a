"""A Deployment whose pods drain for a while is rolled over: a pod keeps its share until it has ended."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import pytest
from support.kubectl import Object
from support.manifests import deployment, program
from support.namespace import Namespace, gated
from support.system import REMOTEGPU, until

DRAIN = int(os.environ.get("REMOTEGPU_E2E_DRAIN_SECONDS", "20"))
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300 + DRAIN)]


def server(fraction: float, **rolling_update: Any) -> Object:
    made = deployment("server", program("drains.py", str(DRAIN)), replicas=1, fraction=fraction)
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = DRAIN + 40
    made["spec"]["strategy"]["rollingUpdate"] = rolling_update
    return made


def serving(namespace: Namespace, *others: str) -> str:
    """Waits for the pod that serves, other than `others`, and returns its name."""

    def found() -> str | None:
        names = [each["metadata"]["name"] for each in namespace.pods(app="server")]
        return next((name for name in names if name not in others and "serving" in namespace.logs(name)), None)

    name: str = until(found, 90, "a pod serves")
    return name


def drained(namespace: Namespace, pod: str) -> int:
    """Waits until the pod has drained; returns the number of correct steps after SIGTERM."""

    def found() -> int | None:
        said = re.search(r"drained, right after (\d+) steps", namespace.logs(pod))
        return int(said[1]) if said else None

    steps: int = until(found, DRAIN + 40, f"{pod} has drained")
    return steps


def pod_named(namespace: Namespace, *others: str) -> Object | None:
    pods = namespace.pods(app="server")
    return next((each for each in pods if each["metadata"]["name"] not in others), None)


def test_with_room_the_new_pod_serves_while_the_old_one_drains(namespace: Namespace) -> None:
    namespace.apply(server(0.3, maxSurge=1, maxUnavailable=0))
    old = serving(namespace)
    namespace("rollout", "restart", "deployment/server")
    new = serving(namespace, old)
    assert "drained" not in namespace.logs(old)
    assert len(namespace.claims()) == 2
    assert drained(namespace, old) > 10
    until(lambda: len(namespace.claims()) == 1, 60, "the share of the old pod is free")
    assert namespace.claim_of(new)


def fill(namespace: Namespace) -> None:
    """Take every GPU that is left whole."""
    for number in range(8):
        namespace.apply(deployment(f"filler-{number}", ["sleep", "86400"], replicas=1, fraction=1.0))
    until(lambda: any(gated(each) for each in namespace.pods()), 60, "the pool is full")
    for name in [each["metadata"]["name"] for each in namespace.pods() if gated(each)]:
        namespace("delete", "deployment", name.rsplit("-", 2)[0])
    until(lambda: not any(gated(each) for each in namespace.pods()), 60, "nobody waits")


def test_in_a_full_pool_the_new_pod_waits_until_the_old_one_has_drained(namespace: Namespace) -> None:
    namespace.apply(server(1.0, maxSurge=0, maxUnavailable=1))
    old = serving(namespace)
    fill(namespace)
    namespace("rollout", "restart", "deployment/server")
    new = until(lambda: pod_named(namespace, old), 60, "there is a new pod")["metadata"]["name"]
    namespace.wait_for_line(old, "draining")
    found = pod_named(namespace, old)
    assert found
    assert gated(found)
    assert drained(namespace, old) > 10
    assert serving(namespace, old) == new


def test_in_a_full_pool_by_default_the_rollout_waits_and_says_for_what(namespace: Namespace) -> None:
    namespace.apply(server(1.0, maxSurge="25%", maxUnavailable="25%"))
    old = serving(namespace)
    fill(namespace)
    namespace("rollout", "restart", "deployment/server")
    new = until(lambda: pod_named(namespace, old), 60, "there is a new pod")["metadata"]["name"]
    namespace.wait_for_claim(new, "Pending")
    said = subprocess.run(
        [REMOTEGPU, "why", new, "-n", namespace.name, *namespace.kubectl.access],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert old in said.stdout, said
    # The rollout continues when a person deletes the old pod.
    assert namespace.phase(old) == "Running"
    namespace("delete", "pod", old, "--wait=false")
    assert drained(namespace, old) > 10
    assert serving(namespace, old) == new
