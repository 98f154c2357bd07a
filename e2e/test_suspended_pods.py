"""A claim is suspended and resumed: its pod waits and continues, another pod has the GPU meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from cluster.lifecycle import part
from support.kubectl import ROOT, Kubectl
from support.manifests import pod
from support.namespace import Namespace
from support.system import until

from remotegpu.api.kubernetes import CLAIMS, POOL_ANNOTATION, POOLS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def one_gpu(kubectl: Kubectl, nodes: list[str], namespace: Namespace) -> Iterator[str]:
    """A pool of one GPU on this cluster's first node."""
    pool = yaml.safe_load((ROOT / "examples" / "04-sharing" / "pool.yaml").read_text())
    name = pool["metadata"]["name"] = "suspend"
    pool["spec"]["nodeSelector"]["kubernetes.io/hostname"] = nodes[0]
    kubectl.apply(pool)
    until(lambda: ((kubectl.get(POOLS, name) or {}).get("status") or {}).get("phase") == "Ready", 90, "it is ready")
    yield name
    namespace("delete", "pod", "--all", "--now", seconds=120)
    kubectl("delete", POOLS, name, seconds=120)


def share(name: str, fraction: str, pool: str, *command: str) -> dict[str, object]:
    return pod(name, ["python", "-u", *command], fraction=fraction, annotations={POOL_ANNOTATION: pool})


def suspend(namespace: Namespace, claim: str, *, on: bool = True) -> None:
    value = "true" if on else "false"
    namespace("patch", CLAIMS, claim, "--type=merge", "-p", f'{{"spec": {{"suspend": {value}}}}}')


def phase(namespace: Namespace, claim: str) -> str:
    found = namespace.get(CLAIMS, claim)
    return "" if found is None else str(found["status"]["phase"])


def becomes(namespace: Namespace, claim: str, wanted: str) -> None:
    until(lambda: phase(namespace, claim) == wanted, 60, f"the claim is {wanted}")


def test_another_pod_has_the_gpu_while_one_is_suspended(namespace: Namespace, one_gpu: str, kubectl: Kubectl) -> None:
    namespace.create(share("trainer", "0.75", one_gpu, "/programs/counting.py", "200"))
    namespace.wait_for_line("trainer", "checked 10", seconds=90)
    (claim,) = [each["metadata"]["name"] for each in namespace.claims()]
    suspend(namespace, claim)
    becomes(namespace, claim, "Suspended")
    until(lambda: "is suspended" in namespace.logs("trainer"), 20, "its program says so")
    before = namespace.logs("trainer")
    # The operator that decided it may end.
    kubectl("-n", "remotegpu-system", "delete", "pod", "-l", "app.kubernetes.io/component=operator", "--wait=false")
    namespace.create(share("visitor", "0.9", one_gpu, "/programs/vector_add.py"))
    namespace.wait_for_phase("visitor", "Succeeded", seconds=120)
    assert namespace.logs("trainer") == before
    until(lambda: "ByUser" in namespace.describe("pod", "trainer"), 10, "the pod's events say why")
    suspend(namespace, claim, on=False)
    becomes(namespace, claim, "Allocated")
    namespace.wait_for_line("trainer", "right", seconds=120)
    until(lambda: not namespace.claims(), 20, "completed pods hold nothing")


def test_kubelets_start_anew_while_a_pod_is_suspended(
    namespace: Namespace, one_gpu: str, nodes: list[str], kubectl: Kubectl
) -> None:
    namespace.create(share("trainer", "0.75", one_gpu, "/programs/counting.py", "200"))
    namespace.wait_for_line("trainer", "checked 10", seconds=90)
    (claim,) = [each["metadata"]["name"] for each in namespace.claims()]
    suspend(namespace, claim)
    becomes(namespace, claim, "Suspended")
    for node in nodes:
        part(f"kubelet-{node}").kill()
    for node in nodes:
        part(f"kubelet-{node}").start()
    kubectl("wait", "nodes", "--all", "--for=condition=Ready", "--timeout=60s", seconds=70)
    suspend(namespace, claim, on=False)
    becomes(namespace, claim, "Allocated")
    namespace.wait_for_line("trainer", "right", seconds=120)
    restarts = [each["restartCount"] for pod in namespace.pods() for each in pod["status"]["containerStatuses"]]
    assert restarts == [0]


def test_a_pod_that_is_deleted_while_it_is_suspended_leaves_nothing(namespace: Namespace, one_gpu: str) -> None:
    namespace.create(share("trainer", "0.75", one_gpu, "/programs/counting.py", "10000"))
    namespace.wait_for_line("trainer", "checked 10", seconds=90)
    (claim,) = [each["metadata"]["name"] for each in namespace.claims()]
    suspend(namespace, claim)
    becomes(namespace, claim, "Suspended")
    namespace("delete", "pod", "trainer", "--now", seconds=60)
    until(lambda: not namespace.claims(), 30, "its claim is gone")
    namespace.create(share("next", "1", one_gpu, "/programs/vector_add.py"))
    namespace.wait_for_phase("next", "Succeeded", seconds=120)
