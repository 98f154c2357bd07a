"""The chart's own programs on a cluster: `helm test`, and the hooks that make and remove pools."""

from __future__ import annotations

import re

import pytest
from support.checker import SYSTEM, Checker
from support.installation import RELEASE, Installation
from support.kubectl import Kubectl
from support.system import MIB

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_helm_test_adds_vectors_on_a_tenth_of_a_gpu(
    installation: Installation, kubectl: Kubectl, checker: Checker
) -> None:
    log = kubectl.helm("test", RELEASE, "--namespace", SYSTEM, "--logs")
    assert "100000 sums are right" in log
    seen = re.search(r"(\d+) MiB", log)
    assert seen, log
    shareable = {size // MIB for truth in checker.truths() for size in truth.shareable.values()}
    assert any(abs(int(seen[1]) - whole // 10) <= 2 for whole in shareable)
    checker.settled(20)


def test_pools_of_the_values_come_and_go_and_hooks_leave_no_right(installation: Installation, kubectl: Kubectl) -> None:
    # On no node, so that it takes nothing from the others.
    installation.upgrade("--set", "pools.of-values.nodeSelector.example\\.com/none=such")
    assert kubectl.get("gpupool", "of-values") is not None
    installation.upgrade()
    assert kubectl.get("gpupool", "of-values") is None
    assert kubectl.get("gpupool", "default") is not None
    for kind in ("clusterroles", "clusterrolebindings"):
        ours = [each["metadata"]["name"] for each in kubectl.all(kind) if "remotegpu" in each["metadata"]["name"]]
        assert sorted(ours) == ["remotegpu-appliance", "remotegpu-deviceplugin", "remotegpu-operator"]
