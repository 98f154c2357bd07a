"""Example 9: an ordinary Python program in a pod, parts of which run in an acceptor of the pool."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from support.checker import Checker
from support.installation import Installation, pool_ready
from support.kubectl import ROOT, Kubectl, Object
from support.namespace import Namespace
from support.system import until

EXAMPLE = ROOT / "examples" / "09-offload"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def pool(kubectl: Kubectl, installation: Installation, nodes: list[str]) -> Iterator[Object]:
    """The example's pool, on one node alone."""
    document = yaml.safe_load((EXAMPLE / "pool.yaml").read_text())
    document["spec"]["nodeSelector"] = {"kubernetes.io/hostname": nodes[0]}
    name = document["metadata"]["name"]
    kubectl.apply(document)
    try:

        def ready() -> Object | None:
            found = kubectl.get("gpupool", name)
            if not found or not pool_ready(found):
                return None
            # An appliance is ready before its environments have started.
            there = [each for each in found["status"]["appliances"] if each["environments"]]
            return found if there else None

        found: Object = until(ready, 120, "the pool with the environment is ready")
        yield found
    finally:
        kubectl("delete", "gpupool", name, "--wait=false")


def result(log: str) -> dict[str, str]:
    """Parses the program's output into its values by line."""
    patterns = ("program runs on", "described on", "features", "accuracy")
    found = {name: re.search(rf"^{name} (.*)$", log, re.MULTILINE) for name in patterns}
    assert all(found.values()), log
    return {name: match[1] for name, match in found.items() if match}


def test_a_program_offloads_what_its_config_map_says(
    namespace: Namespace, pool: Object, installation: Installation, checker: Checker
) -> None:
    (appliance,) = pool["status"]["appliances"]
    assert [(each["name"], each["backend"]) for each in appliance["environments"]] == [("sklearn", "cpu")]
    assert pool["status"]["environments"] == "sklearn (cpu)"

    namespace("apply", "-k", str(EXAMPLE))
    # The same program as any pod runs it: without the annotation, and without a share.
    plain = yaml.safe_load((EXAMPLE / "pod.yaml").read_text())
    plain["metadata"] = {"name": "plain"}
    del plain["spec"]["containers"][0]["resources"]
    namespace.apply(plain)
    claim = namespace.wait_for_claim("offload", "Allocated", seconds=60)
    assert (claim["spec"]["mode"], claim["spec"]["pool"]) == ("offload", "python")
    for name in ("plain", "offload"):
        namespace.wait_for_phase(name, "Succeeded", seconds=120)

    local, offloaded = result(namespace.logs("plain")), result(namespace.logs("offload"))
    assert (offloaded["program runs on"], offloaded["described on"]) == ("offload", f"{appliance['name']}-0")
    assert local["described on"] == "plain"
    for line in ("features", "accuracy"):
        assert offloaded[line] == local[line]
    pod = installation.appliance(appliance["name"])
    assert pod is not None
    assert checker.metrics(pod)['remotegpu_offload_sessions_opened_total{environment="sklearn"}'] == 1


def test_a_claim_serves_only_what_it_is_for(namespace: Namespace, pool: Object) -> None:
    """A pod in the wrong pool, or with the wrong claim, waits with that reason."""
    document = yaml.safe_load((EXAMPLE / "pod.yaml").read_text())
    document["metadata"] = {"name": "elsewhere", "annotations": {"remotegpu.io/offload": "offload-rules"}}
    namespace.create(document)
    claim = namespace.wait_for_claim("elsewhere", "Pending")
    until(lambda: namespace.claim_of("elsewhere")["status"]["reason"] == "NoEnvironment", 30, "the claim says why")  # type: ignore[index]
    found = namespace.claim_of("elsewhere")
    assert found is not None
    assert found["metadata"]["uid"] == claim["metadata"]["uid"]
    assert "pool default has no environment for offload" in found["status"]["message"]

    namespace.create({"apiVersion": "remotegpu.io/v1alpha1", "kind": "GPUClaim", "metadata": {"name": "mine"},
                      "spec": {"fraction": "0.1", "pool": "python", "mode": "offload"}})  # fmt: skip
    document["metadata"] = {"name": "cuda", "annotations": {"remotegpu.io/claim": "mine"}}
    del document["spec"]["containers"][0]["resources"]
    namespace.create(document)
    until(lambda: "ClaimOfOtherMode" in namespace.describe("pod", "cuda"), 30, "the pod is told")
    assert "has mode offload and the pod no annotation remotegpu.io/offload" in namespace.describe("pod", "cuda")
