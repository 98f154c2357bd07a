"""Tests of the annotation remotegpu.io/offload, which adds the Python client and the ConfigMap to containers."""

from __future__ import annotations

from typing import Any

import pytest
from support.chart import Object
from support.webhook import Space, other_annotations, pod

from remotegpu.api.kubernetes import CLIENT, FRACTION, MILLI
from remotegpu.api.pods import Container, PodError
from remotegpu_operator.webhook.mutate import answer
from remotegpu_operator.webhook.origin import Origin
from remotegpu_operator.webhook.pod import rewrite_pod

NOTE = {"remotegpu.io/offload": "rules"}
START = "/usr/lib/remotegpu/python/remotegpu_offload/sitecustomize"
VARIABLES = [
    {"name": "PYTHONPATH", "value": START},
    {"name": "REMOTEGPU_CONFIG", "value": "/etc/remotegpu/offload/remotegpu.yaml"},
    {"name": "REMOTEGPU_CONNECT", "value": "/usr/lib/remotegpu/bin/remotegpu-connect"},
]
MOUNT = {"name": "remotegpu-offload", "mountPath": "/etc/remotegpu/offload", "readOnly": True}
VOLUME = {"name": "remotegpu-offload", "configMap": {"name": "rules", "defaultMode": 0o644}}


def two_containers(first: Object, **second: Any) -> Object:
    document = pod("fit", {FRACTION: "0.25"}, annotations=NOTE)
    document["spec"]["containers"][0] |= first
    document["spec"]["containers"].append({"name": "side", "image": "none", **second})
    return document


def test_a_pod_with_the_annotation_finds_its_client_and_its_rules(space: Space) -> None:
    """Checks the pod as the API server has stored it."""
    document = two_containers({"env": [{"name": "MINE", "value": "1"}]}, env=[{"name": "OTHER", "value": "2"}])
    (stored,) = space.create(document)
    app, side = stored["spec"]["containers"]
    assert app["env"] == [{"name": "MINE", "value": "1"}, *VARIABLES]
    assert MOUNT in app["volumeMounts"]
    assert VOLUME in stored["spec"]["volumes"]
    assert other_annotations(stored) == NOTE
    assert "env" not in side or side["env"] == [{"name": "OTHER", "value": "2"}]
    assert MOUNT not in side.get("volumeMounts", [])


def test_without_the_annotation_no_variable_is_set(space: Space) -> None:
    (stored,) = space.create(pod("cuda", {FRACTION: "0.25"}))
    (app,) = stored["spec"]["containers"]
    assert "env" not in app and [each["name"] for each in stored["spec"]["volumes"]] == ["remotegpu"]


@pytest.mark.parametrize("annotations", [{"remotegpu.io/memory": "1Gi"}, {"remotegpu.io/claim": "mine"}])
def test_shares_by_memory_and_by_claim(annotations: dict[str, str]) -> None:
    (app,) = rewritten(pod("fit", annotations={**NOTE, **annotations}))["spec"]["containers"]
    assert Container.of(app).limits == {CLIENT: "1"}
    assert app["env"] == VARIABLES and MOUNT in app["volumeMounts"]


def rewritten(document: Object) -> Object:
    """Rewrites the pod. Checks that a second call of the webhook changes nothing."""
    once = rewrite_pod(document, Origin()).document
    assert rewrite_pod(once, Origin()).document == once
    return dict(once)


def environment(*variables: Object) -> list[Object]:
    document = pod("fit", {MILLI: "250"}, annotations=NOTE)
    document["spec"]["containers"][0]["env"] = list(variables)
    found: list[Object] = rewritten(document)["spec"]["containers"][0]["env"]
    return found


def test_the_authors_own_variables_stay() -> None:
    own = {"name": "PYTHONPATH", "value": "/app:/lib"}
    assert environment(own) == [{"name": "PYTHONPATH", "value": f"{START}:/app:/lib"}, *VARIABLES[1:]]
    # A second call of the webhook finds its own changes, and changes nothing.
    assert environment({"name": "PYTHONPATH", "value": f"{START}:/app"})[0]["value"] == f"{START}:/app"
    config = {"name": "REMOTEGPU_CONFIG", "value": "/app/remotegpu.yaml"}
    assert environment(config) == [config, VARIABLES[0], VARIABLES[2]]


@pytest.mark.parametrize(
    ("document", "names"),
    [
        (
            pod("fit", annotations=NOTE),
            r"\bremotegpu\.io/offload\b.*\bremotegpu/fraction\b",
        ),
        (
            pod("fit", {FRACTION: 1}, annotations={"remotegpu.io/offload": "My_Rules"}),
            r"\bremotegpu\.io/offload: 'My_Rules'",
        ),
        (pod("fit", {FRACTION: 1}, annotations={"remotegpu.io/offload": ""}), r"\bremotegpu\.io/offload: ''"),
        (
            pod("fit", {FRACTION: 1}, annotations={"remotegpu.io/ofload": "rules"}),
            r"\bremotegpu\.io/ofload\b.*\bremotegpu\.io/offload\?",
        ),
        (
            two_containers({"env": [{"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {}}}]}),
            r"\bcontainer 'app': .*\bremotegpu\.io/offload\b.*\bPYTHONPATH\b",
        ),
        (
            two_containers({"volumeMounts": [{"name": "mine", "mountPath": "/etc/remotegpu/offload"}]}),
            r"\bcontainer 'app': .*/etc/remotegpu/offload\b.*\bvolume 'mine'",
        ),
        (
            {**two_containers({}), "spec": {**two_containers({})["spec"], "volumes": [{"name": "remotegpu-offload"}]}},
            r"\bvolume 'remotegpu-offload'",
        ),
    ],
)
def test_refused_in_words_that_help_the_author(document: Object, names: str) -> None:
    with pytest.raises(PodError, match=names):
        rewrite_pod(document, Origin())


def test_a_template_is_refused_at_once_and_not_pod_by_pod() -> None:
    template = {
        "metadata": {"annotations": {"remotegpu.io/offload": "My_Rules"}},
        "spec": pod("fit", {FRACTION: 1})["spec"],
    }
    deployment = {"metadata": {"name": "fit"}, "spec": {"template": template}}
    resource = {"group": "apps", "version": "v1", "resource": "deployments"}
    request = {"uid": "u", "resource": resource, "operation": "CREATE", "object": deployment}
    response = answer({"request": request})["response"]
    assert "'My_Rules' is no name of an object" in response["status"]["message"]
    template["metadata"]["annotations"] = NOTE
    assert answer({"request": request})["response"]["allowed"]
