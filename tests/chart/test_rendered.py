"""Properties of the rendered manifests whose errors a cluster would show late, or only under load."""

from __future__ import annotations

import json
from pathlib import Path

from support.chart import named, pod_specs, render

from remotegpu_deviceplugin.__main__ import PATIENCE_SECONDS


def test_device_plugins_are_replaced_one_node_after_the_other_without_a_gap(tmp_path: Path) -> None:
    plugin = named(render({}, tmp_path), "DaemonSet", "remotegpu-deviceplugin")["spec"]
    assert plugin["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    # The kubelet must not kill a plugin that still waits for its successor.
    assert plugin["template"]["spec"]["terminationGracePeriodSeconds"] > PATIENCE_SECONDS


def test_no_pod_fills_its_node(tmp_path: Path) -> None:
    for name, spec in pod_specs(render({}, tmp_path)).items():
        for volume in spec.get("volumes", []):
            assert "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"], f"{name}: {volume['name']}"


def test_who_may_read_metrics_and_what_is_closed_reach_the_operator(tmp_path: Path) -> None:
    monitoring = {"kubernetes.io/metadata.name": "monitoring"}
    values = {"metrics": {"fromNamespaces": monitoring}, "networkPolicy": {"egress": False}}
    for changed, expected in (
        (values, (monitoring, "false")),
        ({}, ({}, "true")),
    ):
        operator = named(render(changed, tmp_path), "Deployment", "remotegpu-operator")
        environment = operator["spec"]["template"]["spec"]["containers"][0]["env"]
        found = {each["name"]: each.get("value") for each in environment}
        assert (json.loads(found["REMOTEGPU_METRICS_FROM"]), found["REMOTEGPU_CLOSE_EGRESS"]) == expected


def test_metrics_of_the_charts_own_parts_are_for_those_who_scrape_too(tmp_path: Path) -> None:
    """The kubelet's probes come from the pod's own node, to which a policy does not apply."""
    monitoring = {"kubernetes.io/metadata.name": "monitoring"}
    sources = [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": monitoring}}]
    for values, expected in (({"metrics": {"fromNamespaces": monitoring}}, sources), ({}, sources[:1])):
        objects = render(values, tmp_path)
        for part in ("operator", "webhook", "deviceplugin"):
            rules = named(objects, "NetworkPolicy", f"remotegpu-{part}")["spec"]["ingress"]
            (rule,) = (each for each in rules if {"port": "http"} in each["ports"])
            assert rule == {"from": expected, "ports": [{"port": "http"}]}, part
