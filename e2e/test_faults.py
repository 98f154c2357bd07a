"""Parts that die, stop or vanish while programs run: what the appliances count stays right, and all settles."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from cluster.lifecycle import part
from support import processes
from support.checker import SYSTEM, Checker
from support.faults import Tenant, appliance_of, cut_off, pod_killed, tenants
from support.installation import Installation
from support.kubectl import Kubectl
from support.manifests import claim, pod, program
from support.namespace import Namespace
from support.system import MIB, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SETTLED = 60
# A program looks so many seconds for a lost appliance: the default of `spec.connectionGrace`.
GRACE = 60
CLAIMS = 100
FOREIGN_PODS = 5_000


@pytest.fixture(autouse=True)
def sound(installation: Installation, checker: Checker) -> Iterator[None]:
    """Each fault finds a healthy cluster, and leaves one."""
    installation.wait_until_ready(SETTLED)
    yield
    installation.wait_until_ready(SETTLED)
    checker.settled(SETTLED)


def phases(namespace: Namespace) -> list[str]:
    return [each["status"]["phase"] for each in namespace.claims()]


def test_operator_killed_during_a_hundred_claims(
    namespace: Namespace, installation: Installation, checker: Checker
) -> None:
    running = tenants(namespace, installation)
    asked = [claim(f"claim-{number:03d}", memory="4Mi") for number in range(CLAIMS)]
    quarter = CLAIMS // 4
    for start in range(0, CLAIMS, quarter):
        namespace.create(*asked[start : start + quarter])
        processes.kill(installation.leader())
        assert checker.sample() == []
    until(lambda: phases(namespace).count("Allocated") == CLAIMS + len(running), SETTLED, "all claims are allocated")
    checker.settled(SETTLED)
    for tenant in running:
        tenant.ends_well()
    namespace("delete", "gpuclaims", "--all", "--wait=false")
    until(lambda: not any(truth.held for truth in checker.truths()), SETTLED, "nothing is held any more")


def test_leader_stopped_for_a_minute(namespace: Namespace, installation: Installation, checker: Checker) -> None:
    running = tenants(namespace, installation)
    former = installation.leader()
    begun = time.monotonic()
    with processes.stopped(*processes.of_pod(former)):
        namespace.create(*(claim(f"meanwhile-{number}", memory="4Mi") for number in range(10)))
        until(lambda: phases(namespace).count("Allocated") == 10 + len(running), 55, "the other operator allocates")
        assert installation.leader()["metadata"]["name"] != former["metadata"]["name"]
        until(lambda: time.monotonic() - begun > 60, 61, "a minute")
    checker.settled(SETTLED)
    assert phases(namespace).count("Allocated") == 10 + len(running)
    for tenant in running:
        tenant.ends_well()


def test_appliance_killed(namespace: Namespace, installation: Installation, checker: Checker) -> None:
    victim, *others = tenants(namespace, installation)
    pod_killed(installation, appliance_of(installation, victim))
    victim.fails(10)
    untouched(others)
    checker.settled(SETTLED)


def test_appliance_vanishes_from_the_network(
    namespace: Namespace, installation: Installation, checker: Checker
) -> None:
    """Simulates a machine that loses power: no connection is closed."""
    victim, *others = tenants(namespace, installation)
    with cut_off(installation, appliance_of(installation, victim)):
        begun = time.monotonic()
        until(lambda: victim.phase_of_claim() == ("Lost", "ApplianceLost"), 10, "the claim says ApplianceLost")
        victim.fails(GRACE + 10 - (time.monotonic() - begun))
        untouched(others)
    installation.wait_until_ready(SETTLED)
    checker.settled(SETTLED)
    assert "ok" in namespace.run(pod("next", program("vector_add.py"), fraction="0.9"))


def test_appliance_pod_deleted_at_once(namespace: Namespace, installation: Installation, checker: Checker) -> None:
    victim, *others = tenants(namespace, installation)
    name = appliance_of(installation, victim)["metadata"]["name"]
    namespace.kubectl("delete", "pod", "-n", SYSTEM, name, "--grace-period=0", "--force")
    # No process is left that could say that its session is gone.
    victim.fails(GRACE + 10)
    untouched(others)
    checker.settled(SETTLED)


def untouched(tenants: list[Tenant]) -> None:
    assert tenants
    for tenant in tenants:
        tenant.goes_on()
        tenant.ends_well()


@pytest.mark.parametrize("component", ["webhook", "deviceplugin"])
def test_all_pods_of_a_part_killed(component: str, namespace: Namespace, installation: Installation) -> None:
    running = tenants(namespace, installation)
    for each in installation.pods(component):
        pod_killed(installation, each)
    installation.wait_until_ready(SETTLED)
    assert "ok" in namespace.run(pod("next", program("vector_add.py"), fraction="0.2"))
    untouched(running)


def test_kubelets_killed(namespace: Namespace, installation: Installation, nodes: list[str]) -> None:
    running = tenants(namespace, installation)
    for node in nodes:
        part(f"kubelet-{node}").kill()
    for node in nodes:
        part(f"kubelet-{node}").start()
    namespace.kubectl("wait", "nodes", "--all", "--for=condition=Ready", "--timeout=60s", seconds=70)
    assert "ok" in run_anew(namespace, "next")
    untouched(running)


def run_anew(namespace: Namespace, name: str) -> str:
    """Retries like a controller: until its device plugins have registered again, a kubelet refuses pods for good."""
    for number in range(20):
        try:
            return namespace.run(pod(f"{name}-{number}", program("vector_add.py"), fraction="0.2"))
        except AssertionError as refused:
            if "UnexpectedAdmissionError" not in str(refused):
                raise
    raise AssertionError("no device plugin has registered again")


def test_operators_memory_does_not_move_with_foreign_pods(
    namespace: Namespace, installation: Installation, kubectl: Kubectl
) -> None:
    """Five thousand foreign pods; gates keep scheduler and kubelet out of it."""
    operators = [processes.main_process(each) for each in installation.pods("operator")]
    before = [process.resident_bytes() for process in operators]
    spec = pod("foreign", ["true"])["spec"] | {"schedulingGates": [{"name": "example.com/never"}], "volumes": []}
    spec["containers"][0]["volumeMounts"] = []
    for start in range(0, FOREIGN_PODS, 500):
        names = [f"foreign-{number}" for number in range(start, start + 500)]
        pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec} for name in names]
        namespace.create(*pods, seconds=120)
    grown = [process.resident_bytes() - least for process, least in zip(operators, before, strict=True)]
    assert all(each < 8 * MIB for each in grown), grown
    # It works still.
    namespace.create(pod("ours", ["sleep", "60"], fraction="0.1"))
    namespace.wait_for_claim("ours", "Allocated")
