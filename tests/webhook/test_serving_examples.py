"""Tests of the example for language models: its Deployments after the webhook, and its settings for Kubernetes."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
import yaml
from support.patches import applied
from support.system import ROOT

from remotegpu.api.kubernetes import FRACTION, MILLI
from remotegpu_operator.webhook.mutate import answer

FOLDER = ROOT / "examples" / "16-language-models"
FILES = pytest.mark.parametrize("name", ["vllm", "llama-server"])


def deployment_and_service(name: str) -> tuple[Any, Any]:
    deployment, service = yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text())
    return deployment, service


@FILES
def test_the_share_is_the_templates(name: str) -> None:
    deployment, _ = deployment_and_service(name)
    resource = {"group": "apps", "version": "v1", "resource": "deployments"}
    asked = {"request": {"uid": "u", "resource": resource, "operation": "CREATE", "object": deployment}}
    response = answer(asked)["response"]
    assert response["allowed"]
    made = applied(deployment, json.loads(base64.b64decode(response["patch"])))
    (container,) = made["spec"]["template"]["spec"]["containers"]
    (written,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {MILLI: str(round(1000 * written["resources"]["limits"][FRACTION]))}


@FILES
def test_two_replicas_fit_a_gpu(name: str) -> None:
    deployment, _ = deployment_and_service(name)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert deployment["spec"]["replicas"] == 2
    assert 2 * container["resources"]["limits"][FRACTION] <= 1


@FILES
def test_a_server_is_ready_when_it_answers_and_drains_within_its_grace(name: str) -> None:
    deployment, service = deployment_and_service(name)
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (port,) = container["ports"]
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": port["name"]}
    # The pause before the stop, and the time that vLLM has for running requests. llama-server ends within the hook
    # (tests/llama_cpp).
    pause = re.search(r"sleep (\d+)", " ".join(container["lifecycle"]["preStop"]["exec"]["command"]))
    assert pause
    drain = [int(each.partition("=")[2]) for each in container["args"] if each.startswith("--shutdown-timeout=")]
    assert len(drain) == (name == "vllm")
    assert int(pause[1]) + sum(drain) < spec["terminationGracePeriodSeconds"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    # No surge: in a full pool a new pod would wait for the share of the old pod.
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0
