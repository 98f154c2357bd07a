"""What the rendered manifests say, where a cluster would show it late or only under load."""

from __future__ import annotations

from pathlib import Path

from support.chart import named, render

from remotegpu_deviceplugin.__main__ import PATIENCE_SECONDS


def test_device_plugins_are_replaced_one_node_after_the_other_without_a_gap(tmp_path: Path) -> None:
    plugin = named(render({}, tmp_path), "DaemonSet", "remotegpu-deviceplugin")["spec"]
    assert plugin["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    # The kubelet must not kill one that still waits for its successor.
    assert plugin["template"]["spec"]["terminationGracePeriodSeconds"] > PATIENCE_SECONDS
