"""Tests of the examples for JupyterHub, Kueue and inference with the webhook and real API servers."""

from __future__ import annotations

from decimal import Decimal

import pytest
import yaml
from support.chart import Object
from support.system import ROOT
from support.webhook import Space, pod

from remotegpu.api.kubernetes import GATE, MEMORY_ANNOTATION, MILLI, SUSPENDABLE_ANNOTATION

EXAMPLES = ROOT / "examples"
HUB: Object = yaml.safe_load((EXAMPLES / "12-jupyterhub" / "values.yaml").read_text())
PROFILES = {each["slug"]: each.get("kubespawner_override", {}) for each in HUB["singleuser"]["profileList"]}


def gates(document: Object) -> list[str]:
    return [each["name"] for each in document["spec"].get("schedulingGates", ())]


def resources(document: Object) -> Object:
    """Returns the resources of the only container of a pod or template."""
    (container,) = (document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"])[
        "containers"
    ]
    found: Object = container["resources"]
    return found


@pytest.mark.parametrize("profile", PROFILES)
def test_a_notebook_has_what_its_profile_says(space: Space, profile: str) -> None:
    """KubeSpawner adds `extra_resource_limits` to the limits of the pod's container, and the pod gets its share."""
    override = PROFILES[profile]
    assert set(override) <= {"extra_resource_limits", "extra_annotations"}
    limits = {"memory": "1Gi", **override.get("extra_resource_limits", {})}
    (made,) = space.create(pod("jupyter-somebody", limits, annotations=override.get("extra_annotations", {})))
    share = override.get("extra_resource_limits", {}).get("remotegpu/fraction")
    assert gates(made) == ([GATE] if share else [])
    assert resources(made)["limits"].get(MILLI) == {None: None, "0.25": "250", "1": "1k"}[share]
    assert (SUSPENDABLE_ANNOTATION in made["metadata"].get("annotations", {})) == (profile == "quarter")


def test_a_notebook_may_go_where_example_8_says() -> None:
    _, policy = yaml.safe_load_all((EXAMPLES / "08-trust" / "default-deny.yaml").read_text())
    assert HUB["singleuser"]["networkPolicy"]["egress"] == policy["spec"]["egress"]


def test_kueue_finds_thousandths_in_the_stored_job_and_nothing_else(space: Space) -> None:
    flavor, cluster_queue, queue = yaml.safe_load_all((EXAMPLES / "13-kueue" / "queues.yaml").read_text())
    (made,) = space.create(yaml.safe_load((EXAMPLES / "13-kueue" / "job.yaml").read_text()))
    # A suspended Job has no pods. Kueue multiplies the template's requests by the parallelism.
    assert made["spec"]["suspend"] is True
    asked = {name: Decimal(value) * made["spec"]["parallelism"] for name, value in resources(made)["requests"].items()}
    assert asked == {MILLI: 1500}
    (group,) = cluster_queue["spec"]["resourceGroups"]
    assert group["coveredResources"] == list(asked)
    (offered,) = group["flavors"]
    assert [each["name"] for each in offered["resources"]] == group["coveredResources"]
    assert offered["resources"][0]["nominalQuota"] >= asked[MILLI]
    assert offered["name"] == flavor["metadata"]["name"]
    assert queue["spec"]["clusterQueue"] == cluster_queue["metadata"]["name"]
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue["metadata"]["name"]


def test_a_plain_pod_is_gated_by_both(space: Space) -> None:
    """Kueue counts the pod's requests. The pod has no share yet: see tests/kube_operator/test_gates_of_others.py."""
    document = pod("queued", {"remotegpu/fraction": "0.5"})
    document["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    (made,) = space.create(document)
    assert gates(made) == ["kueue.x-k8s.io/admission", GATE]
    assert resources(made)["requests"][MILLI] == "500"


def test_a_job_that_asks_by_memory_requests_nothing_that_a_queue_could_count(space: Space) -> None:
    document = yaml.safe_load((EXAMPLES / "13-kueue" / "job.yaml").read_text())
    document["spec"]["template"]["metadata"] = {"annotations": {MEMORY_ANNOTATION: "4Gi"}}
    document["spec"]["template"]["spec"]["containers"][0].pop("resources")
    (made,) = space.create(document)
    assert resources(made) == {}


def test_what_serves_a_model_is_stored_with_its_share(space: Space) -> None:
    documents = yaml.safe_load_all(space.kubectl("kustomize", str(EXAMPLES / "14-inference")))
    made = {each["kind"]: each for each in space.apply(*documents)}
    assert sorted(made) == ["ConfigMap", "Deployment", "HorizontalPodAutoscaler", "Service"]
    deployment, autoscaler = made["Deployment"], made["HorizontalPodAutoscaler"]
    assert resources(deployment)["limits"] == {MILLI: "250"}
    # The autoscaler needs a CPU request to compute the utilization.
    assert resources(deployment)["requests"] == {MILLI: "250", "cpu": "100m"}
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    # Only the autoscaler sets the number of replicas. Each apply of a manifest with a number would reset it.
    assert (
        "replicas" not in yaml.safe_load((EXAMPLES / "14-inference" / "model.yaml").read_text().split("---")[0])["spec"]
    )
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert made["Service"]["spec"]["selector"].items() <= labels.items()
