"""Tests that the largest objects that an API server accepts are admitted like small ones."""

from __future__ import annotations

import json

import pytest
from support.webhook import Space, pod

from remotegpu.api.kubernetes import FRACTION, MILLI
from remotegpu.api.pods import Container

# The number of entries that makes an object, with our fields, almost as large as etcd's limit of 1.5 MiB.
ENTRIES = 1300


@pytest.mark.parametrize(("fraction", "milli"), [("0.001", "1"), ("0.01", "10")])
def test_a_hundred_containers(space: Space, fraction: str, milli: str) -> None:
    document = pod("hundred", {FRACTION: fraction})
    (one,) = document["spec"]["containers"]
    document["spec"]["containers"] = [{**one, "name": f"c{number}"} for number in range(100)]
    (stored,) = space.create(document)
    assert [Container.of(each).limits for each in stored["spec"]["containers"]] == [{MILLI: milli}] * 100


def test_a_deployment_of_more_than_a_mebibyte(space: Space) -> None:
    template = pod("large", {FRACTION: "0.25"})
    (app,) = template["spec"]["containers"]
    app["env"] = [{"name": f"E{number}", "value": "x" * 1000} for number in range(ENTRIES)]
    labels = {"app": "large"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "large"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }
    assert len(json.dumps(deployment)) > 1 << 20
    (stored,) = space.create(deployment)
    (app,) = stored["spec"]["template"]["spec"]["containers"]
    assert (Container.of(app).limits, len(app["env"])) == ({MILLI: "250"}, ENTRIES)
    half = [
        {"op": "add", "path": "/spec/template/spec/containers/0/resources/limits/remotegpu~1fraction", "value": "0.5"}
    ]
    space.server.kubectl("-n", space.name, "patch", "deployment", "large", "--type=json", "--patch", json.dumps(half))
    found = space.server.kubectl("-n", space.name, "get", "deployment", "large", "-o", "json").stdout
    (app,) = json.loads(found)["spec"]["template"]["spec"]["containers"]
    assert (Container.of(app).limits, len(app["env"])) == ({MILLI: "500"}, ENTRIES)
