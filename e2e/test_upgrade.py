"""Upgrade, rollback and removal while programs compute and pods wait. Runs last: it takes the installation away."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cluster.lifecycle import NODES
from support.checker import SYSTEM, Checker
from support.faults import Tenant, appliance_of, tenants
from support.installation import RELEASE, Installation
from support.kubectl import Kubectl
from support.manifests import claim, pod, program
from support.namespace import Namespace, gated, temporary
from support.system import until

from remotegpu.api.kubernetes import APPLIANCE_LABEL

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

IMAGE = "localhost/remotegpu-appliance:dev"
RIGHTS = "clusterroles,clusterrolebindings"
NEXT_IMAGE = "localhost/remotegpu-appliance:next"


@pytest.fixture(scope="module")
def next_image() -> Iterator[str]:
    """The same content under another name, as a new release would be."""
    for node in NODES:
        node.ctr("images", "tag", "--force", IMAGE, NEXT_IMAGE)
    yield NEXT_IMAGE
    for node in NODES:
        node.ctr("images", "remove", NEXT_IMAGE)


def images(installation: Installation) -> dict[str, str]:
    """Returns the image of each appliance that has a pod."""
    return {
        each["metadata"]["labels"][APPLIANCE_LABEL]: each["spec"]["containers"][0]["image"]
        for each in installation.appliances()
    }


def wait_for_image(installation: Installation, tenant: Tenant, image: str) -> None:
    until(lambda: images(installation).get(tenant.appliance) == image, 90, f"{tenant.appliance} runs {image}")


def test_programs_outlive_an_upgrade_of_everything_and_a_rollback(
    namespace: Namespace, installation: Installation, checker: Checker, kubectl: Kubectl, next_image: str
) -> None:
    """Image, certificate authority and CRDs change at once; each appliance is replaced when its program has ended."""
    running = tenants(namespace, installation)
    before = {each.appliance: appliance_of(installation, each)["metadata"]["uid"] for each in running}
    authority = kubectl.get("secret", "remotegpu-ca", SYSTEM)
    assert authority
    older = [{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": "An older one."}]
    kubectl("patch", "crd", "gpuclaims.remotegpu.io", "--type=json", f"--patch={json.dumps(older)}")
    new_values = f"pools.default.image={next_image},certificates.generation=e2e"
    installation.upgrade("--set-string", new_values)
    assert "An older one." not in kubectl("get", "crd", "gpuclaims.remotegpu.io", "-o", "json")
    until(
        lambda: (kubectl.get("secret", "remotegpu-ca", SYSTEM) or authority)["data"] != authority["data"],
        60,
        "the authority has changed",
    )
    for tenant in running:
        tenant.goes_on()
        assert appliance_of(installation, tenant)["metadata"]["uid"] == before[tenant.appliance]
    for tenant in running:
        tenant.ends_well()
        wait_for_image(installation, tenant, next_image)
    installation.wait_until_ready()

    running = tenants_again(namespace, installation)
    kubectl.helm("rollback", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout=4m")
    for tenant in running:
        tenant.goes_on()
        tenant.ends_well()
        wait_for_image(installation, tenant, IMAGE)
    installation.wait_until_ready()
    checker.settled(60)


def tenants_again(namespace: Namespace, installation: Installation) -> list[Tenant]:
    namespace("delete", "pods", "--all", "--now", seconds=60)
    return tenants(namespace, installation)


@pytest.mark.timeout(900)
def test_removal_with_claims_and_waiting_pods_leaves_nothing(
    kubectl: Kubectl, installation: Installation, nodes: list[str]
) -> None:
    with temporary(kubectl) as namespace:
        tenants(namespace, installation)
        namespace.create(claim("kept", memory="16Mi"), pod("waits", program("hold.py"), fraction="0.9"))
        namespace.wait_for_claim("waits", "Pending")
        kubectl.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout=4m")

        for kind in ("mutatingwebhookconfigurations", "validatingadmissionpolicies"):
            assert "remotegpu" not in kubectl("get", kind, "-o", "name")
        assert not [each for each in kubectl.all("pods", namespace.name) if gated(each)]
        for each in (*namespace.all("pods"), *kubectl.all("gpuclaims"), *kubectl.all("gpupools")):
            assert "finalizers" not in each["metadata"]
        # The pod that waited is the user's: it stays, and says why it does not run.
        until(
            lambda: "Insufficient remotegpu/milli" in namespace.describe("pod", "waits"), 30, "why it is not scheduled"
        )
        assert "remotegpu was uninstalled" in namespace.describe("pod", "waits")
        # Only the claim made by hand stays, as if no operator had seen it.
        claims = {each["metadata"]["name"]: each["status"]["reason"] for each in namespace.claims()}
        assert claims == {"kept": "NotSeen"}
        kubectl("delete", "namespace", namespace.name, "--timeout=60s", seconds=70)

        # Kubelet forgets a device plugin after five minutes; a Job removes what it leaves, and then itself.
        until(lambda: not kubectl.all("jobs", SYSTEM), 480, "the Job nodekeys has ended and is gone")
        assert '"remotegpu/' not in kubectl("get", "nodes", "-o", "json")
        until(lambda: "remotegpu" not in kubectl("get", RIGHTS, "-o", "name"), 30, "our rights are gone")
        until(lambda: not kubectl.all("pods", SYSTEM), 30, "no pod of ours")
        kubectl("delete", "namespace", SYSTEM, "--timeout=60s", seconds=70)
