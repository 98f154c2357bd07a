"""Tests without a running webhook: only requests that ask for a share fail."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from support.system import ROOT, free_port
from support.webhook import AS_OPERATOR, LIFT, Admission, Space, pod

from remotegpu.api.kubernetes import FRACTION, MILLI, SESSION_ANNOTATION

EXAMPLE = ROOT / "examples" / "03-workloads"


@pytest.fixture(scope="module")
def absent(admission: Admission) -> Iterator[Space]:
    """A namespace with workloads and pods that were created before the webhook stopped."""
    space = Space(admission.server)
    space.kubectl("apply", "-f", str(EXAMPLE))
    space.create(pod("waiting", {FRACTION: 0.5}), pod("running", {FRACTION: 0.5}))
    admission.call(f"https://127.0.0.1:{free_port()}", answers=False)
    yield space
    admission.call(admission.replica.url)


def test_a_pod_that_asks_for_a_share_is_refused_and_the_refusal_names_us(absent: Space) -> None:
    for document in (
        pod("new", {FRACTION: 0.5}),
        pod("new", {MILLI: 500}),
        pod("new", annotations={"remotegpu.io/claim": "mine"}),
        *(yaml.safe_load(file.read_text()) for file in EXAMPLE.glob("*.yaml")),
    ):
        document["metadata"]["name"] = "new"
        sentence = absent.refused(document)
        assert 'failed calling webhook "' in sentence
        assert ".remotegpu.io" in sentence
        assert "connection refused" in sentence
    # A removal of the fraction fails, too: without the webhook the thousandths would stay.
    without = yaml.safe_load((EXAMPLE / "deployment.yaml").read_text())
    without["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    assert "failed calling webhook" in absent.refusal("apply", "-f", "-", stdin=json.dumps(without))


def test_nobody_else_notices(absent: Space) -> None:
    absent.create(pod("plain", {"cpu": "1"}))
    for file in EXAMPLE.glob("*.yaml"):
        document = yaml.safe_load(file.read_text())
        text = json.dumps(document).replace(f'"{FRACTION}": 0.1', '"cpu": "1"')
        absent.kubectl("apply", "-f", "-", stdin=text.replace(f'"name": "{file.stem}"', f'"name": "plain-{file.stem}"'))


def test_what_has_a_share_goes_on(absent: Space) -> None:
    deployment, job = ("deployment", "deployment"), ("job", "job")
    absent.kubectl("scale", "deployment/deployment", "--replicas=0")
    absent.kubectl("rollout", "restart", "deployment/deployment")
    absent.kubectl("set", "image", "deployment/deployment", "share=other")
    absent.kubectl("label", *deployment, "colour=blue")
    absent.kubectl("patch", *deployment, "-p", '{"metadata": {"finalizers": ["example.com/x"]}}')
    absent.kubectl("patch", *deployment, "--subresource=status", "-p", '{"status": {"observedGeneration": 3}}')
    # The ReplicaSet from the Deployment's controller has thousandths and no fraction.
    found = absent.get(*deployment)
    replica_set = yaml.safe_load((EXAMPLE / "replicaset.yaml").read_text())
    replica_set["metadata"]["name"] = "of-the-deployment"
    replica_set["spec"] |= {key: found["spec"][key] for key in ("template", "selector")}
    absent.create(replica_set)

    # The controller completes a finished Job.
    times = {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:00Z"}
    conditions = [{"type": type_, "status": "True"} for type_ in ("SuccessCriteriaMet", "Complete")]
    finished = {"status": {**times, "succeeded": 1, "uncountedTerminatedPods": {}, "conditions": conditions}}
    absent.kubectl("patch", *job, "--subresource=status", "-p", json.dumps(finished))

    # The operator releases the pod, the kubelet reports its status, and the pod is deleted.
    session = {"op": "add", "path": "/metadata/annotations", "value": {SESSION_ANNOTATION: "{}"}}
    patch = json.dumps([session, *json.loads(LIFT)])
    absent.kubectl("patch", "pod", "waiting", "--type=json", "-p", patch, *AS_OPERATOR)
    assert "schedulingGates" not in absent.get("pod", "waiting")["spec"]
    for phase in ("Running", "Succeeded"):
        absent.kubectl(
            "patch", "pod", "running", "--subresource=status", "-p", json.dumps({"status": {"phase": phase}})
        )
    absent.kubectl("delete", "pods", "--all", "--now")
    assert not json.loads(absent.kubectl("get", "pods", "-o", "json"))["items"]
