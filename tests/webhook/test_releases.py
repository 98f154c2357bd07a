"""Tests of fractions in Helm releases. Helm compares three manifests, and sends only the differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.chart import Object, helm
from support.webhook import Space

from remotegpu.api.kubernetes import FRACTION, MILLI

QUARTER = {"limits": {FRACTION: 0.25, "cpu": "1"}}
HALF = {"limits": {FRACTION: 0.5, "cpu": "1"}}
NONE = {"limits": {"cpu": "1"}}


class Release:
    """A release of a chart with one Deployment, whose resources are a value of the chart."""

    def __init__(self, space: Space, folder: Path) -> None:
        self._space = space
        self._chart = folder / "chart"
        (self._chart / "templates").mkdir(parents=True)
        (self._chart / "Chart.yaml").write_text("apiVersion: v2\nname: workload\nversion: 0.1.0\n")
        container = {"name": "app", "image": "{{ .Values.image }}", "resources": "{{ toJson .Values.resources }}"}
        labels = {"app": "workload"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "workload"},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }
        text = json.dumps(deployment).replace('"{{ toJson .Values.resources }}"', "{{ toJson .Values.resources }}")
        (self._chart / "templates" / "deployment.yaml").write_text(text)

    def run(self, *arguments: str) -> None:
        helm("-n", self._space.name, *arguments, kubeconfig=self._space.server.kubeconfig)

    def upgrade(self, resources: Any, image: str = "one") -> tuple[int, Object]:
        values = [f"--set-json=resources={json.dumps(resources)}", f"--set=image={image}"]
        self.run("upgrade", "--install", "workload", str(self._chart), *values)
        return self.stored()

    def stored(self) -> tuple[int, Object]:
        """Returns the Deployment's generation and its container's resources."""
        found = self._space.get("deployment", "workload")
        (container,) = found["spec"]["template"]["spec"]["containers"]
        return found["metadata"]["generation"], container["resources"]


@pytest.fixture
def release(space: Space, tmp_path: Path) -> Release:
    return Release(space, tmp_path)


def of(milli: str) -> Object:
    return {"limits": {"cpu": "1", MILLI: milli}, "requests": {MILLI: milli}}


def test_upgraded_changed_taken_back_and_rolled_back(release: Release) -> None:
    assert release.upgrade(QUARTER) == (1, of("250"))
    assert release.upgrade(QUARTER) == (1, of("250"))
    assert release.upgrade(HALF) == (2, of("500"))
    assert release.upgrade(HALF, image="two") == (3, of("500"))
    assert release.upgrade(NONE, image="two") == (4, NONE)
    assert release.upgrade(NONE, image="two") == (4, NONE)
    release.run("rollback", "workload", "1")
    assert release.stored() == (5, of("250"))
    release.run("rollback", "workload", "5")
    assert release.stored() == (6, NONE)


def test_what_others_write_to_a_release_keeps_the_share(release: Release, space: Space) -> None:
    release.upgrade(QUARTER)
    space.kubectl("set", "image", "deployment/workload", "app=other")
    space.kubectl("annotate", "deployment/workload", "colour=blue")
    assert release.stored()[1] == of("250")


def test_from_a_fraction_to_thousandths_by_hand(release: Release) -> None:
    """Another amount is stored as written. The same amount is not among the differences that Helm sends."""
    release.upgrade(QUARTER)
    by_hand = {"limits": {"cpu": "1", MILLI: "300"}}
    assert release.upgrade(by_hand)[1] == of("300")
    assert release.upgrade(by_hand, image="two")[1] == of("300")
    release.upgrade(HALF)
    same = {"limits": {"cpu": "1", MILLI: "500"}}
    assert release.upgrade(same)[1] == NONE
    assert release.upgrade(same)[1]["limits"] == same["limits"]
