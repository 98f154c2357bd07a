"""Example 1: an ordinary pod with a quarter of a GPU, in a namespace that enforces the `restricted` standard."""

from __future__ import annotations

import json
import re

import pytest
from support.checker import Checker
from support.installation import Installation
from support.kubectl import ROOT
from support.manifests import pod, program
from support.namespace import Namespace
from support.system import MIB, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_digits_train_on_a_quarter_of_the_memory(namespace: Namespace, checker: Checker) -> None:
    whole = {size // MIB for truth in checker.truths() for size in truth.shareable.values()}
    assert len(whole) == 1
    quarter = whole.pop() // 4

    namespace("apply", "-k", str(ROOT / "examples" / "01-digits"))
    namespace.wait_for_phase("digits", "Succeeded", seconds=150)

    log = namespace.logs("digits")
    smi = re.search(r"(\d+)MiB\s*/\s*(\d+)MiB", log)
    assert smi, log
    assert abs(int(smi[2]) - quarter) <= 2
    seen = re.search(r"memory (\d+) MiB", log)
    assert seen, log
    assert abs(int(seen[1]) - quarter) <= 2
    accuracy = re.search(r"test accuracy ([0-9.]+)", log)
    assert accuracy, log
    assert float(accuracy[1]) > 0.9


def test_no_claim_and_no_lease_remain_of_a_pod_that_has_ended(namespace: Namespace, checker: Checker) -> None:
    assert "ok" in namespace.run(pod("adds", program("vector_add.py"), fraction="0.25"))
    until(lambda: not namespace.claims(), 10, "the claim is gone although the pod is still there")
    assert namespace.phase("adds") == "Succeeded"
    checker.settled(10)


def test_a_byte_over_the_share_is_refused(namespace: Namespace) -> None:
    seen = json.loads(namespace.run(pod("limit", program("limit.py"), fraction="0.125")).splitlines()[-1])
    assert seen["byte_over"] == seen["full"] == 2  # CUDA_ERROR_OUT_OF_MEMORY
    assert seen["total"] - 4 * MIB <= seen["taken"] <= seen["total"]


def test_the_appliances_counters_say_what_their_inventory_says(
    namespace: Namespace, checker: Checker, installation: Installation
) -> None:
    namespace.create(pod("holds", program("hold.py"), fraction="0.5"))
    claim = namespace.wait_for_claim("holds", "Allocated")
    namespace.wait_for_line("holds", "round 1")
    for appliance in checker.appliance_pods():
        metrics, gpus = checker.metrics(appliance), checker.inventory(appliance).gpus
        assert [metrics[f'remotegpu_gpu_leased_bytes{{gpu="{gpu.index}"}}'] for gpu in gpus] == [
            gpu.leased_bytes for gpu in gpus
        ]
    uid = claim["metadata"]["uid"].replace("-", "")
    sessions = [
        number for truth in checker.truths() for each, number in truth.sessions.items() if each.replace("-", "") == uid
    ]
    assert sessions == [1]
